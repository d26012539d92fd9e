"""The weights that serve, and how other ones take their place between two tokens.

The base is mapped from the model's files. A version is merged into it (base + scale * B A) and laid out beside the
weights that serve, one layer at a time; then, while generation is paused, only references change hands. What a version
does not touch stays what it was.
"""

from __future__ import annotations

import contextlib
import ctypes
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from stereorl.errors import VersionError
from stereorl.policy import adapters
from stereorl.policy.base import Base, open_tensors
from stereorl.policy.head import Head, head_of
from stereorl.policy.lean import Lean, fits
from stereorl.policy.linear import ServedLinear, ServedNorm, can_pack
from stereorl.policy.shell import own_parameters, shell


@dataclass(frozen=True, slots=True, eq=False)
class _Slot:
    """A served layer made of the named linear layers, side by side."""

    layers: tuple[str, ...]
    linear: ServedLinear

    def parameters(self) -> set[str]:
        return {f"{layer}.{kind}" for layer in self.layers for kind in ("weight", "bias")}


@dataclass(frozen=True, slots=True, eq=False)
class Ready:
    """A version prepared: what to assign where, and the parameters that then differ from the base."""

    assignments: list[tuple[Any, str, Tensor]]
    changed: set[str]


class Weights:
    """`serving` is what generates, `head` what scores; `lean`, where the model allows it, is the fast way through both.

    All share parameters. `planned`: attention goes by `attention.Plan`, without which there is no `lean`.
    """

    def __init__(self, model: Any, folder: Path, *, attention: str, planned: bool):
        self._base = Base(model, folder)
        self._packed = can_pack(model)
        self._slots: list[_Slot] = []
        self.serving = shell(model, attention)
        own_parameters(self.serving)
        self.lean = self._try_lean(model) if planned and fits(model) else None
        if self.lean is not None:
            self.head = Head(self.lean.body, self.lean.head)
        else:
            self.head = head_of(self._generic(model.config._attn_implementation))
        inside = set().union(*(slot.parameters() for slot in self._slots))
        self._params = {n: p for n, p in self.serving.named_parameters() if n not in inside}
        self._changed: set[str] = set()

    def prepare(self, path: Path | None, *, breathe: Callable[[], None]) -> Ready:
        """Lay out a version's weights (None: the base); `breathe` runs between two layers.

        Raises VersionError for a folder that is broken, not finite, or of another model. Changes nothing.
        """
        version = {} if path is None else self._full(path) if is_full(path) else self._merged(path)
        touched = self._changed | set(version)

        def weight(name: str) -> Tensor | None:
            make = version.get(name)
            return self._base.get(name) if make is None else make()

        assignments: list[tuple[Any, str, Tensor]] = []
        for slot in self._slots:
            if touched & slot.parameters():
                parts = [weight(f"{layer}.weight") for layer in slot.layers]
                assignments.append((slot.linear, "served", slot.linear.prepare(_joined(parts))))
                breathe()
                if slot.linear.bias is not None:
                    biases = [weight(f"{layer}.bias") for layer in slot.layers]
                    assignments.append((slot.linear, "bias", _joined(biases)))
        for name in touched & set(self._params):
            tensor = weight(name)
            assert tensor is not None
            assignments.append((self._params[name], "data", tensor))
            breathe()
        return Ready(assignments, set(version))

    def install(self, ready: Ready) -> None:
        """Swap references. Only while nothing generates or scores."""
        for owner, attribute, tensor in ready.assignments:
            setattr(owner, attribute, tensor)
        self._changed = ready.changed

    def _linear(self, *layers: str) -> ServedLinear:
        weight = _joined([self._base[f"{layer}.weight"] for layer in layers])
        biases = [self._base.get(f"{layer}.bias") for layer in layers]
        bias = None if biases[0] is None else _joined(biases)
        linear = ServedLinear(weight, bias, packed=self._packed)
        self._slots.append(_Slot(layers, linear))
        return linear

    def _try_lean(self, model: Any) -> Lean | None:
        try:
            lean = Lean(self.serving, self._linear)
            if lean.agrees(model):
                return lean
        except (AttributeError, KeyError, RuntimeError):
            pass
        self._slots.clear()
        return None

    def _generic(self, attention: str) -> Any:
        """Put served layers into the serving model and return a second one, for scoring, that shares them."""
        scoring = shell(self.serving, attention)
        for name, module in [(n, m) for n, m in self.serving.named_modules() if n]:
            served = self._linear(name) if type(module) is nn.Linear else ServedNorm.of(module)
            if served is not None:
                self.serving.set_submodule(name, served)
                scoring.set_submodule(name, served)
        return scoring

    def _merged(self, path: Path) -> dict[str, Callable[[], Tensor]]:
        deltas = adapters.merged_deltas(path)
        for name, delta in deltas.items():
            base, shape = self._base.get(name), (delta.b.shape[0], delta.a.shape[1])
            if base is None or tuple(base.shape) != shape:
                raise VersionError(f"{path} was trained on another model: it has no {name} of shape {shape}.")
        return {name: _Merge(self._base, name, delta) for name, delta in deltas.items()}

    def _full(self, path: Path) -> dict[str, Callable[[], Tensor]]:
        tensors = open_tensors(path / adapters.FULL_WEIGHTS)
        wanted: dict[str, Callable[[], Tensor]] = {}
        for name in self._base.names:
            found = tensors.get(name, tensors.get(self._base.tied.get(name, "")))
            if found is None or found.shape != self._base[name].shape:
                raise VersionError(
                    f"{path} was trained on another model: it has no {name} of the right shape."
                )
            wanted[name] = _Checked(found, self._base, f"{path}: {name} is not finite.")
        return wanted


def is_full(path: Path) -> bool:
    """Whether a version's folder holds all weights rather than an adapter."""
    return (path / adapters.FULL_WEIGHTS).is_file()


class _Merge:
    """Makes a merged weight when it is called, so that only one at a time exists beside its layout."""

    def __init__(self, base: Base, name: str, delta: adapters.Delta):
        self._base, self._name, self._delta = base, name, delta

    def __call__(self) -> Tensor:
        return self._delta.merged(self._base[self._name])


class _Checked:
    """Reads a weight of a full checkpoint when it is called, and refuses it unless it is finite."""

    def __init__(self, tensor: Tensor, base: Base, complaint: str):
        self._tensor, self._base, self._complaint = tensor, base, complaint

    def __call__(self) -> Tensor:
        if not torch.isfinite(self._tensor).all():
            raise VersionError(self._complaint)
        return self._tensor.to(device=self._base.device, dtype=self._base.dtype)


def _joined(tensors: Sequence[Tensor | None]) -> Tensor:
    present = [tensor for tensor in tensors if tensor is not None]
    assert len(present) == len(tensors) > 0
    return present[0] if len(present) == 1 else torch.cat(present)


def breather(idle: Callable[[], bool], *, share: float = 0.2) -> Callable[[], None]:
    """Called between two slices of work, sleeps so that they take `share` of the time while requests run."""
    last = time.perf_counter()

    def breathe() -> None:
        nonlocal last
        if not idle():
            time.sleep(min(0.1, (time.perf_counter() - last) * (1 / share - 1)))
        last = time.perf_counter()

    return breathe


def give_back_memory() -> None:
    """Return what a swap freed to the system; the C library would keep it (glibc only, else nothing happens)."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
