"""The weights that serve, and how other ones take their place between two tokens.

The base is read from the model's safetensors by memory mapping, so it costs no memory of its own. A version is merged
into it (base + scale * B A) and laid out beside the weights that serve, one layer at a time; then, while generation is
paused, only references change hands. What a version does not touch stays what it was.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from stereorl.errors import EngineError, VersionError
from stereorl.policy import adapters
from stereorl.policy.linear import ServedLinear, ServedNorm, can_pack

Tensors = dict[str, Tensor]


class Weights:
    """Two model objects over the same parameters: `serving` (paged attention) and `scoring` (plain attention)."""

    def __init__(self, model: Any, folder: Path, *, attention: str):
        self._base = _Base(model, folder)
        packed = can_pack(model)
        self.serving = _shell(model, attention)
        _own_parameters(self.serving)
        self.scoring = _shell(self.serving, model.config._attn_implementation)
        self._linears: dict[str, ServedLinear] = {}
        for name, linear in [(n, m) for n, m in self.serving.named_modules() if type(m) is nn.Linear]:
            served = ServedLinear(self._base[f"{name}.weight"], linear.bias, packed=packed)
            self._linears[f"{name}.weight"] = served
            for shell in (self.serving, self.scoring):
                shell.set_submodule(name, served)
        for name, module in list(self.serving.named_modules()):
            norm = ServedNorm.of(module) if name else None
            if norm is not None:
                for shell in (self.serving, self.scoring):
                    shell.set_submodule(name, norm)
        self._params = dict(self.serving.named_parameters())
        self._changed: set[str] = set()  # what differs from the base

    def prepare(self, path: Path | None, *, breathe: Callable[[], None]) -> Tensors:
        """The weights of a version (None: the base), ready to be installed; `breathe` runs after each.

        Raises VersionError for a folder that is broken, not finite, or of another model. Changes nothing.
        """
        wanted = {} if path is None else self._version(path)
        ready: Tensors = {}
        for name in sorted(self._changed | set(wanted)):
            make = wanted.get(name)
            tensor = self._base[name] if make is None else make()
            linear = self._linears.get(name)
            ready[name] = tensor if linear is None else linear.prepare(tensor)
            breathe()
        return ready

    def install(self, ready: Tensors, path: Path | None) -> None:
        """Swap references. Only while nothing runs on either model."""
        for name, tensor in ready.items():
            if name in self._linears:
                self._linears[name].served = tensor
            else:
                self._params[name].data = tensor
        self._changed = set() if path is None else set(ready)

    def _version(self, path: Path) -> dict[str, Callable[[], Tensor]]:
        return self._full(path) if is_full(path) else self._merged(path)

    def _merged(self, path: Path) -> dict[str, Callable[[], Tensor]]:
        deltas = adapters.merged_deltas(path)
        for name, delta in deltas.items():
            shape = (delta.b.shape[0], delta.a.shape[1])
            if name not in self._linears or tuple(self._base[name].shape) != shape:
                raise VersionError(f"{path} was trained on another model: it has no {name} of shape {shape}.")
        return {name: _Merge(self._base, name, delta) for name, delta in deltas.items()}

    def _full(self, path: Path) -> dict[str, Callable[[], Tensor]]:
        tensors = _open(path / adapters.FULL_WEIGHTS)
        served = set(self._linears) | set(self._params)
        for name in served & set(tensors):
            if tensors[name].shape != self._base[name].shape:
                raise VersionError(f"{path} was trained on another model: {name} has another shape.")
            if not torch.isfinite(tensors[name]).all():
                raise VersionError(f"{path}: {name} is not finite.")
        missing = {
            n for n in served - set(tensors) if n not in self._base.tied or self._base.tied[n] not in tensors
        }
        if missing:
            raise VersionError(
                f"{path} lacks {sorted(missing)[:3]} and {max(0, len(missing) - 3)} more weights."
            )
        dtype = self._base.dtype
        return {name: _Cast(tensors[tensors_name(name, tensors, self._base.tied)], dtype) for name in served}


def is_full(path: Path) -> bool:
    return (path / adapters.FULL_WEIGHTS).is_file()


def tensors_name(name: str, tensors: Tensors, tied: dict[str, str]) -> str:
    """A tied weight lies in the file under the other one's name."""
    return name if name in tensors else tied[name]


class _Merge:
    def __init__(self, base: _Base, name: str, delta: adapters.Delta):
        self._base, self._name, self._delta = base, name, delta

    def __call__(self) -> Tensor:
        return self._delta.merged(self._base[self._name])


class _Cast:
    def __init__(self, tensor: Tensor, dtype: torch.dtype):
        self._tensor, self._dtype = tensor, dtype

    def __call__(self) -> Tensor:
        return self._tensor.to(self._dtype)


class _Base:
    """The base weights by name: mapped from the model's files where they hold them as they are, else the model's."""

    def __init__(self, model: Any, folder: Path):
        own = {name: param.detach() for name, param in model.named_parameters(remove_duplicate=False)}
        self.dtype: torch.dtype = model.dtype
        first: dict[int, str] = {}
        self.tied: dict[str, str] = {}
        for name, tensor in own.items():
            if first.setdefault(tensor.data_ptr(), name) != name:
                self.tied[name] = first[tensor.data_ptr()]
                self.tied.setdefault(first[tensor.data_ptr()], name)
        mapped: Tensors = {}
        for file in sorted(folder.glob("*.safetensors")):
            mapped.update(_open(file))
        self._tensors: Tensors = {}
        for name, tensor in own.items():
            found = mapped.get(name, mapped.get(self.tied.get(name, "")))
            same = found is not None and found.shape == tensor.shape and found.dtype == tensor.dtype
            keep = found is not None and same and tensor.device.type == "cpu"
            self._tensors[name] = found if keep and found is not None else tensor

    def __getitem__(self, name: str) -> Tensor:
        return self._tensors[name]


def _open(file: Path) -> Tensors:
    """All tensors of a safetensors file, memory-mapped: only what is read comes into memory."""
    try:
        with safe_open(file, framework="pt") as handle:
            return {name: handle.get_tensor(name) for name in handle.keys()}  # noqa: SIM118 - not a dict
    except (OSError, SafetensorError) as error:
        raise VersionError(f"Cannot read the weights in {file}: {error}") from error


def _shell(model: Any, attention: str) -> Any:
    """Another object of the model's class over the same parameters and buffers."""
    config = copy.deepcopy(model.config)
    with torch.device("meta"):
        shell = type(model)(config)
    own = dict(model.named_modules(remove_duplicate=False))
    for name, module in shell.named_modules(remove_duplicate=False):
        module._parameters.update(own[name]._parameters)
        module._buffers.update(own[name]._buffers)
    for part in (config, *(getattr(config, sub) for sub in config.sub_configs)):
        part._attn_implementation_internal = attention
    if any(tensor.is_meta for tensor in (*shell.parameters(), *shell.buffers())):
        raise EngineError(
            f"{type(model).__name__} keeps weights outside its parameters; it cannot be served here."
        )
    return shell.eval()


def _own_parameters(shell: Any) -> None:
    """Give the shell Parameters of its own (over the same memory), so that a swap leaves the caller's model alone."""
    own: dict[int, nn.Parameter] = {}
    for module in shell.modules():
        for name, param in module._parameters.items():
            if param is not None:
                own.setdefault(id(param), nn.Parameter(param.detach(), requires_grad=False))
                module._parameters[name] = own[id(param)]


def breather(pause_s: float, idle: Callable[[], bool]) -> Callable[[], None]:
    """Sleeps between two slices of work while requests run, so that tokens keep flowing."""

    def breathe() -> None:
        if not idle():
            time.sleep(pause_s)

    return breathe
