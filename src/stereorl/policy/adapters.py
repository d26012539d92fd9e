"""What trains and what it is measured against: LoRA by PEFT, or all weights beside a frozen copy.

A LoRA version's folder holds `adapter_config.json` and `adapter_model.safetensors` as PEFT and vLLM read
them; a full version's folder is a model folder.
"""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from stereorl.errors import VersionError
from stereorl.policy.load import Loaded
from stereorl.policy.quiet import quiet

ADAPTER_CONFIG = "adapter_config.json"
ADAPTER_WEIGHTS = "adapter_model.safetensors"
FULL_WEIGHTS = "model.safetensors"
_PREFIX = "base_model.model."
_BASE = "_stereorl_base"


def attach(
    loaded: Loaded, *, kind: Literal["lora", "full"], r: int = 16, alpha: float = 32.0, seed: int = 0
) -> Any:
    """The model, trainable: LoRA on every linear layer but the head (zero at first), or all weights.

    Deterministic in `seed`. `loaded.model` is changed in place and must not be attached twice.
    """
    if kind == "full":
        return _attach_full(loaded.model)
    import peft

    config = peft.LoraConfig(
        r=r,
        lora_alpha=alpha,
        lora_dropout=0.0,
        target_modules="all-linear",
        task_type="CAUSAL_LM",
    )
    with torch.random.fork_rng(devices=[]), quiet():
        torch.manual_seed(seed)
        model = peft.get_peft_model(loaded.model, config)
    model.peft_config["default"].base_model_name_or_path = loaded.name
    return model


def _attach_full(model: Any) -> Any:
    base = {name: param.detach().clone() for name, param in model.named_parameters()}
    setattr(model, _BASE, base)
    return model.requires_grad_(True)


@contextlib.contextmanager
def reference(model: Any) -> Iterator[Any]:
    """Within it the model is the frozen base. No gradient may be taken across its edges."""
    base: dict[str, Tensor] | None = getattr(model, _BASE, None)
    if base is None:
        with model.disable_adapter():
            yield model
        return
    live = {name: param.data for name, param in model.named_parameters()}
    _point(model, base)
    try:
        yield model
    finally:
        _point(model, live)


def _point(model: Any, tensors: dict[str, Tensor]) -> None:
    for name, param in model.named_parameters():
        param.data = tensors[name]


class Average:
    """A moving average of the trained parameters: mean <- (1 - rate) * mean + rate * parameter, at each `follow`."""

    def __init__(self, model: Any, rate: float):
        self._model = model
        self._rate = rate
        self._mean = {name: p.detach().clone() for name, p in model.named_parameters() if p.requires_grad}

    def follow(self) -> None:
        with torch.no_grad():
            for name, param in self._model.named_parameters():
                if name in self._mean:
                    self._mean[name].lerp_(param, self._rate)

    @contextlib.contextmanager
    def weights(self) -> Iterator[Any]:
        """Within it the model is the average. No gradient may be taken across its edges."""
        trained = {n: p for n, p in self._model.named_parameters() if n in self._mean}
        live = {name: param.data for name, param in trained.items()}
        for name, param in trained.items():
            param.data = self._mean[name]
        try:
            yield self._model
        finally:
            for name, param in trained.items():
                param.data = live[name]

    def state_dict(self) -> dict[str, Tensor]:
        return dict(self._mean)

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Take up a saved average; without one (another kind of teacher made it) begin anew at the policy."""
        for name, param in self._model.named_parameters():
            if name in self._mean:
                self._mean[name] = state.get(name, param).detach().clone().to(param.device)


def is_lora(model: Any) -> bool:
    return hasattr(model, "peft_config")


def save(model: Any, folder: Path) -> None:
    """Write the trainable weights to `folder` (made if absent)."""
    folder.mkdir(parents=True, exist_ok=True)
    if not is_lora(model):
        with quiet():
            model.save_pretrained(folder)
        return
    tensors = {name: param.detach().contiguous().cpu() for name, param in _trainable(model).items()}
    save_file(tensors, folder / ADAPTER_WEIGHTS, metadata={"format": "pt"})
    config = model.peft_config["default"].to_dict()
    config.update(inference_mode=True, target_modules=sorted(config["target_modules"]))
    (folder / ADAPTER_CONFIG).write_text(
        json.dumps(config, indent=2, sort_keys=True, default=str), encoding="utf-8"
    )


def load_into(model: Any, folder: Path) -> None:
    """Put the weights of `folder` into an attached model; VersionError, unchanged, when they misfit."""
    tensors = _read(folder / (ADAPTER_WEIGHTS if is_lora(model) else FULL_WEIGHTS))
    wanted = _trainable(model)
    if {name: t.shape for name, t in tensors.items()} != {name: t.shape for name, t in wanted.items()}:
        raise VersionError(
            f"{folder} holds other weights than this model trains (another base, rank or kind)."
        )
    with torch.no_grad():
        for name, param in wanted.items():
            param.copy_(tensors[name])


def _trainable(model: Any) -> dict[str, Tensor]:
    """The parameters that train, by the names that PEFT (LoRA) or transformers (full) gives them on disk."""
    if not is_lora(model):
        return {name: param for name, param in model.named_parameters() if param.requires_grad}
    return {n.replace(".default.", "."): p for n, p in model.named_parameters() if p.requires_grad}


def _read(file: Path) -> dict[str, Tensor]:
    try:
        tensors: dict[str, Tensor] = load_file(file)
    except (OSError, SafetensorError) as error:
        raise VersionError(f"Cannot read the weights in {file}: {error}") from error
    return tensors


@dataclass(frozen=True, slots=True, eq=False)
class Delta:
    """What a LoRA adds to one linear layer's weight: `scale * B @ A`."""

    a: Tensor
    b: Tensor
    scale: float

    def merged(self, base_OI: Tensor) -> Tensor:
        """`base + scale * B @ A` in the base's type, worked out in float32."""
        out = torch.addmm(base_OI.float(), self.b.float(), self.a.float(), alpha=self.scale)
        return out.to(base_OI.dtype)


def merged_deltas(folder: Path) -> dict[str, Delta]:
    """Parameter name ("model.layers.0.mlp.up_proj.weight") -> Delta, of a LoRA version's folder.

    Raises VersionError when the folder is broken, not finite, or uses a variant of LoRA that cannot be merged
    so.
    """
    config = _lora_config(folder)
    tensors = _read(folder / ADAPTER_WEIGHTS)
    deltas: dict[str, Delta] = {}
    for name in [name for name in tensors if name.endswith(".lora_A.weight")]:
        layer = name.removeprefix(_PREFIX).removesuffix(".lora_A.weight")
        a, b = tensors.pop(name), tensors.pop(name.replace(".lora_A.", ".lora_B."), None)
        if b is None or a.dim() != 2 or b.dim() != 2 or a.shape[0] != b.shape[1]:
            raise VersionError(f"{folder}: the two LoRA matrices of {layer} do not fit together.")
        if not (torch.isfinite(a).all() and torch.isfinite(b).all()):
            raise VersionError(f"{folder}: a LoRA weight of {layer} is not finite.")
        rank = a.shape[0]
        deltas[f"{layer}.weight"] = Delta(
            a, b, config["lora_alpha"] / (math.sqrt(rank) if config["use_rslora"] else rank)
        )
    if tensors or not deltas:
        raise VersionError(f"{folder}: not a plain LoRA adapter (it also holds {sorted(tensors)[:3]}).")
    return deltas


def _lora_config(folder: Path) -> dict[str, Any]:
    try:
        config: dict[str, Any] = json.loads((folder / ADAPTER_CONFIG).read_text(encoding="utf-8"))
        alpha = float(config["lora_alpha"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise VersionError(f"Cannot read {folder / ADAPTER_CONFIG}: {error}") from error
    odd = [key for key in ("use_dora", "alpha_pattern", "rank_pattern", "fan_in_fan_out") if config.get(key)]
    if config.get("peft_type") != "LORA" or odd:
        raise VersionError(
            f"{folder}: only plain LoRA adapters can be served (found {odd or config.get('peft_type')})."
        )
    return {"lora_alpha": alpha, "use_rslora": bool(config.get("use_rslora"))}
