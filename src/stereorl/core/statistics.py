"""Numbers about an update, from the per-token values of its whole batch."""

from __future__ import annotations

import torch
from torch import Tensor

from stereorl.core.shapes import check_BT, check_mask


def masked_mean(value_BT: Tensor, mask_BT: Tensor) -> float | None:
    """Mean of `value_BT` over the mask, None when it is empty: an absent statistic is not a 0.

    Shapes: both [B, T], mask_BT bool. Errors: ValueError on other shapes or a mask that is not boolean.
    """
    check_BT(value_BT=value_BT, mask_BT=mask_BT)
    check_mask(mask_BT=mask_BT)
    chosen = value_BT[mask_BT]
    return float(chosen.float().mean()) if chosen.numel() else None


def spread(value_BT: Tensor, mask_BT: Tensor) -> dict[str, float]:
    """Mean, 95th percentile of the size, and largest size of `value_BT` over the mask; {} when it is empty.

    Equation: mean(x), q95(|x|) by linear interpolation, max(|x|).
    Shapes and errors: as `masked_mean`.
    """
    check_BT(value_BT=value_BT, mask_BT=mask_BT)
    check_mask(mask_BT=mask_BT)
    chosen = value_BT[mask_BT].float()
    if not chosen.numel():
        return {}
    size = chosen.abs()
    return {"mean": float(chosen.mean()), "p95": float(torch.quantile(size, 0.95)), "max": float(size.max())}


def entropy_estimate(logp_BT: Tensor, mask_BT: Tensor) -> float | None:
    """Mean of -log pi over sampled tokens: unbiased for the entropy if pi sampled them, None without tokens.

    Source: the definition of entropy. Shapes and errors: as `masked_mean`.
    """
    return masked_mean(-logp_BT, mask_BT)
