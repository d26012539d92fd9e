"""Layers for decoding on a CPU, where a step is hundreds of small operations and each must cost little.

Linear: with 8 rows the vendor kernel behind `nn.Linear` takes up to twice the time that the same float32 sums take in a
layout made for it. That holds for layers that widen (the head, an MLP's way up); the others gain nothing and keep the
plain kernel, whose rounding is half as large. The layout is a copy; the plain weight is not kept beside it.
Norm: one call instead of six. Both skip the hook machinery of `nn.Module`: nothing hooks a served model.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


class ServedLinear(nn.Module):
    """`x W^T + b` with a weight that can be exchanged by one assignment. `served` is packed or plain."""

    def __init__(self, weight: Tensor, bias: Tensor | None, *, packed: bool):
        super().__init__()
        self.out_features, self.in_features = weight.shape
        self.bias: Any = bias  # not a Parameter: it is exchanged like the weight
        self.packed = packed and self.out_features >= 2 * self.in_features
        self.served: Any = self.prepare(weight)
        self._op: Any = torch.ops.mkldnn._linear_pointwise.default if self.packed else torch._C._nn.linear

    @property
    def weight(self) -> Tensor:
        """Only good for asking where it lies: a packed weight has no rows."""
        served: Tensor = self.served
        return served

    def prepare(self, weight: Tensor) -> Tensor:
        """A plain weight in the form that `served` takes. Packing costs one copy of the weight."""
        if not self.packed:
            return weight
        packed: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), None)
        return packed

    def __call__(self, x: Tensor) -> Tensor:
        tail = (self.bias, "none", [], "") if self.packed else (self.bias,)
        out: Tensor = self._op(x, self.served, *tail)
        return out


class ServedNorm(nn.Module):
    """Root-mean-square norm over the last dimension; shares the weight of the module that it stands in for."""

    def __init__(self, weight: nn.Parameter, eps: float):
        super().__init__()
        self.weight, self.eps, self._shape = weight, eps, list(weight.shape)

    def __call__(self, x: Tensor) -> Tensor:
        return torch.rms_norm(x, self._shape, self._parameters["weight"], self.eps)

    @classmethod
    def of(cls, module: nn.Module) -> ServedNorm | None:
        """The stand-in for `module`, or None unless it computes the same (Gemma's, for one, adds 1 to its weight)."""
        eps = getattr(module, "variance_epsilon", getattr(module, "eps", None))
        weight = module._parameters.get("weight")
        if not isinstance(eps, float) or weight is None or len(module._parameters) > 1 or weight.dim() != 1:
            return None
        norm = cls(weight, eps)
        x = torch.linspace(-2, 3, 2 * len(weight), device=weight.device, dtype=weight.dtype).view(1, 2, -1)
        with torch.inference_mode():
            return norm if torch.allclose(norm(x), module(x), rtol=1e-6, atol=1e-6) else None


def can_pack(model: Any) -> bool:
    """Whether this build of torch packs float32 weights on this device and computes the same with them."""
    if model.device.type != "cpu" or model.dtype != torch.float32 or not torch._C._has_mkldnn:
        return False
    generator = torch.Generator().manual_seed(0)
    weight, x = torch.randn(96, 32, generator=generator), torch.randn(1, 5, 32, generator=generator)
    try:
        with torch.inference_mode():
            packed = ServedLinear(weight, None, packed=True)(x)
    except (RuntimeError, AttributeError, NotImplementedError):
        return False
    return torch.allclose(packed, x @ weight.t(), atol=1e-4)
