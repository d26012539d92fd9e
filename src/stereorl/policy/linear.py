"""Linear layers for decoding on a CPU: weights laid out once for oneDNN's small-batch kernels.

With 8 rows the vendor kernel behind `nn.Linear` takes up to twice the time that the same float32 sums take in a layout
made for it. That holds for layers that widen (the head, an MLP's way up); the others gain nothing and keep the plain
kernel, whose rounding is half as large. The layout is a copy; the plain weight is not kept beside it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


class ServedLinear(nn.Module):
    """`x W^T + b` with a weight that can be exchanged by one assignment. `weight` is packed or plain."""

    def __init__(self, weight: Tensor, bias: Tensor | None, *, packed: bool):
        super().__init__()
        self.out_features, self.in_features = weight.shape
        self.bias = None if bias is None else nn.Parameter(bias, requires_grad=False)
        self.packed = packed and self.out_features >= 2 * self.in_features
        self.served: Any = self.prepare(weight)

    def prepare(self, weight: Tensor) -> Tensor:
        """A plain weight in the form that `served` takes. Costs one copy of the weight."""
        if not self.packed:
            return weight
        packed: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), None)
        return packed

    def forward(self, x: Tensor) -> Tensor:
        if not self.packed:
            return nn.functional.linear(x, self.served, self.bias)
        out: Tensor = torch.ops.mkldnn._linear_pointwise(x, self.served, self.bias, "none", [], "")
        return out


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
