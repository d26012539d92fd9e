"""From per-token values to one number. Denominators count trained tokens only and never divide by 0."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from stereorl.core.shapes import check_BT, check_mask

Aggregation = Literal["seq_mean_token_mean", "token_mean"]


def token_weights(mask_BT: Tensor, *, mode: Aggregation, dtype: torch.dtype = torch.float32) -> Tensor:
    """The weight of each token in the aggregate; they sum to 1, or to 0 when the mask is empty.

    Equation: `token_mean`: m / sum(m). `seq_mean_token_mean`: m[b,t] / (n[b] * N), with n[b] trained tokens
        in row b and N rows that have any.
    Source: `seq_mean_token_mean` is the reference's; `token_mean` is DAPO's (arXiv 2503.14476).
    Shapes: mask_BT bool [B, T]; returns [B, T] of `dtype`.
    Errors: ValueError on another shape, a mask that is not boolean, an unknown mode.

    Weights of a whole batch may be cut into micro-batches: the aggregates then add up to the whole batch's.
    """
    check_BT(mask_BT=mask_BT)
    check_mask(mask_BT=mask_BT)
    mask = mask_BT.to(dtype)
    if mode == "token_mean":
        return mask / mask.sum().clamp(min=1)
    if mode == "seq_mean_token_mean":
        tokens_B1 = mask.sum(dim=1, keepdim=True)
        rows = (tokens_B1 > 0).sum().clamp(min=1)
        return mask / (tokens_B1.clamp(min=1) * rows)
    raise ValueError(f"mode must be seq_mean_token_mean or token_mean, not {mode!r}.")


def weighted_sum(value_BT: Tensor, weight_BT: Tensor) -> Tensor:
    """sum over b, t of weight * value, where a weight of 0 also silences NaN and infinities.

    Source: none needed. Shapes: both [B, T]; returns a scalar. Errors: ValueError on other shapes.
    """
    check_BT(value_BT=value_BT, weight_BT=weight_BT)
    return (torch.where(weight_BT != 0, value_BT, torch.zeros_like(value_BT)) * weight_BT).sum()


def aggregate(value_BT: Tensor, mask_BT: Tensor, *, mode: Aggregation = "seq_mean_token_mean") -> Tensor:
    """The mean of `value_BT` over trained tokens; 0, with a defined gradient of 0, when there are none.

    Equation: sum of token_weights(mask) * value. Source and errors: as `token_weights`.
    Shapes: value_BT [B, T], mask_BT bool [B, T]; returns a scalar.
    """
    check_BT(value_BT=value_BT, mask_BT=mask_BT)
    return weighted_sum(value_BT, token_weights(mask_BT, mode=mode, dtype=value_BT.dtype))
