"""Checks at the door of the core: shapes and masks are refused by name before any arithmetic."""

# ruff: noqa: N802 - shapes live in names

from __future__ import annotations

import torch
from torch import Tensor


def check_BT(**tensors: Tensor) -> tuple[int, int]:
    """All tensors share one shape [B, T], which is returned. Raises ValueError that names the odd one."""
    first, *_ = tensors
    shape = tuple(tensors[first].shape)
    if len(shape) != 2:
        raise ValueError(f"{first} must have shape [B, T], not {list(shape)}.")
    for name, tensor in tensors.items():
        if tuple(tensor.shape) != shape:
            raise ValueError(f"{name} has shape {list(tensor.shape)}, but {first} has {list(shape)}.")
    return shape[0], shape[1]


def check_B(rows: int | None = None, **tensors: Tensor) -> int:
    """All tensors share one shape [B], with B == `rows` if given. Raises ValueError naming the odd one."""
    for name, tensor in tensors.items():
        if tensor.dim() != 1 or (rows is not None and len(tensor) != rows):
            expected = "[B]" if rows is None else f"[{rows}]"
            raise ValueError(f"{name} must have shape {expected}, not {list(tensor.shape)}.")
        rows = len(tensor)
    assert rows is not None
    return rows


def check_mask(**masks: Tensor) -> None:
    """Masks are boolean. Raises ValueError otherwise: a float mask could smuggle in a weight."""
    for name, mask in masks.items():
        if mask.dtype != torch.bool:
            raise ValueError(f"{name} must be a boolean mask, not {mask.dtype}.")


def check_BTK(**tensors: Tensor) -> tuple[int, int, int]:
    """All tensors share one shape [B, T, K], which is returned. Raises ValueError that names the odd one."""
    first, *_ = tensors
    shape = tuple(tensors[first].shape)
    if len(shape) != 3:
        raise ValueError(f"{first} must have shape [B, T, K], not {list(shape)}.")
    for name, tensor in tensors.items():
        if tuple(tensor.shape) != shape:
            raise ValueError(f"{name} has shape {list(tensor.shape)}, but {first} has {list(shape)}.")
    return shape[0], shape[1], shape[2]
