"""The parameter anchor: a pull back to where the weights began. It is no KL and is not called one."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor


def parameter_anchor(parameters: Sequence[Tensor], anchors: Sequence[Tensor]) -> Tensor:
    """sum over all parameters of (theta - theta_0)^2, a scalar.

    Source: the penalty of the first seed article (which calls it a KL); L2-SP (Li et al. 2018, arXiv 1802.01483).
    Shapes: the two sequences pair up. No gradient reaches the anchors. Errors: ValueError when they do not pair up.

    0, with a gradient of 0, at theta_0; the gradient is 2 (theta - theta_0).
    """
    if not parameters or len(parameters) != len(anchors):
        raise ValueError(f"{len(parameters)} parameters and {len(anchors)} anchors: give one of each.")
    if any(p.shape != a.shape for p, a in zip(parameters, anchors, strict=True)):
        raise ValueError("A parameter and its anchor have different shapes.")
    total = parameters[0].new_zeros(())
    for parameter, anchor in zip(parameters, anchors, strict=True):
        total = total + (parameter - anchor.detach()).square().sum()
    return total
