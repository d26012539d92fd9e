"""The base weights by name, mapped from the model's own files so that they cost no memory beside what serves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from stereorl.errors import VersionError

Tensors = dict[str, Tensor]


class Base:
    """`base[name]` for every parameter; `tied[name]` is another name of the same parameter, where there is one."""

    def __init__(self, model: Any, folder: Path):
        own = {name: param.detach() for name, param in model.named_parameters(remove_duplicate=False)}
        self.dtype: torch.dtype = model.dtype
        self.device: torch.device = model.device
        self.tied = _tied(own)
        mapped: Tensors = {}
        for file in sorted(folder.glob("*.safetensors")):
            mapped.update(open_tensors(file))
        self._tensors = {name: self._mapped(name, tensor, mapped) for name, tensor in own.items()}

    def __getitem__(self, name: str) -> Tensor:
        return self._tensors[name]

    def get(self, name: str) -> Tensor | None:
        return self._tensors.get(name)

    @property
    def names(self) -> set[str]:
        return set(self._tensors)

    def _mapped(self, name: str, own: Tensor, mapped: Tensors) -> Tensor:
        """The file's tensor where it is the model's as it stands (not cast, moved or converted on loading)."""
        found = mapped.get(name, mapped.get(self.tied.get(name, "")))
        if found is None or found.shape != own.shape or found.dtype != own.dtype or own.device.type != "cpu":
            return own
        return found


def open_tensors(file: Path) -> Tensors:
    """All tensors of a safetensors file, memory-mapped: only what is read comes into memory."""
    try:
        with safe_open(file, framework="pt") as handle:
            return {name: handle.get_tensor(name) for name in handle.keys()}  # noqa: SIM118 - not a dict
    except (OSError, SafetensorError) as error:
        raise VersionError(f"Cannot read the weights in {file}: {error}") from error


def _tied(own: Tensors) -> dict[str, str]:
    first: dict[int, str] = {}
    tied: dict[str, str] = {}
    for name, tensor in own.items():
        other = first.setdefault(tensor.data_ptr(), name)
        if other != name:
            tied[name] = other
            tied.setdefault(other, name)
    return tied
