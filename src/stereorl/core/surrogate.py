"""The clipped surrogate, its clip mask, and the importance weight that corrects for an older sampler."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from stereorl.core.shapes import check_BT

ClipMode = Literal["paper", "mirrored"]
LOG_RATIO_BOUND = 20.0  # exp() stays finite, also in the backward pass


def ratio(logp_new_BT: Tensor, logp_old_BT: Tensor) -> Tensor:
    """rho[b,t] = exp(log pi_new - log pi_old), the log-ratio bounded to +-20; exactly 1 when both are equal.

    Source: Schulman et al. 2017 (PPO); the bound keeps exp and its gradient finite.
    Shapes: both [B, T]; returns [B, T]. No gradient reaches logp_old_BT.
    Errors: ValueError on other shapes.
    """
    check_BT(logp_new_BT=logp_new_BT, logp_old_BT=logp_old_BT)
    return (logp_new_BT - logp_old_BT.detach()).clamp(-LOG_RATIO_BOUND, LOG_RATIO_BOUND).exp()


def clipped_surrogate(
    ratio_BT: Tensor,
    advantage_BT: Tensor,
    *,
    eps_low: float = 0.2,
    eps_high: float = 0.28,
    clip: ClipMode = "paper",
    dual_clip: float | None = None,
) -> Tensor:
    """L[b,t] = -min(rho * A, clip(rho, low, high) * A), a loss.

    Equation: `paper`: [low, high] = [1 - eps_low, 1 + eps_high] for both signs of A. `mirrored`: the same for
        A >= 0, and [1 - eps_high, 1 + eps_low] for A < 0. `dual_clip` c: where A < 0, max of that minimum and c * A.
    Source: PPO (Schulman et al. 2017), asymmetric as in DAPO (arXiv 2503.14476) and arXiv 2603.10165; dual clip: Ye
        et al. 2020 (arXiv 1912.09729) with c = 3.
    Shapes: both [B, T]; returns [B, T].
    Errors: ValueError on other shapes, eps outside [0, 1) (low) or below 0 (high), c <= 1, an unknown mode.

    At rho = 1 the value is -A and the gradient with respect to log pi_new is -A.
    """
    factor_BT = surrogate_ratio(
        ratio_BT, advantage_BT, eps_low=eps_low, eps_high=eps_high, clip=clip, dual_clip=dual_clip
    )
    return -factor_BT * advantage_BT


def surrogate_ratio(
    ratio_BT: Tensor,
    advantage_BT: Tensor,
    *,
    eps_low: float = 0.2,
    eps_high: float = 0.28,
    clip: ClipMode = "paper",
    dual_clip: float | None = None,
) -> Tensor:
    """The ratio that `clipped_surrogate` multiplies A with: rho itself, or the constant that clips it.

    Equation: L = -r * A with r = rho where the clip is not active, else the bound that is. Source, shapes, errors: as
    `clipped_surrogate`.

    Given r, the surrogate is linear in A: that of a sum of advantages is the sum of theirs. So each signal's share of
    one clipped objective, and its gradient, is exact.
    """
    low_BT, high_BT = _interval(advantage_BT, ratio_BT, eps_low, eps_high, clip)
    bound_BT = torch.where(advantage_BT > 0, high_BT, low_BT)
    active_BT = torch.where(advantage_BT > 0, ratio_BT > high_BT, ratio_BT < low_BT) & (advantage_BT != 0)
    out_BT = torch.where(active_BT, bound_BT, ratio_BT)
    if dual_clip is None:
        return out_BT
    if not dual_clip > 1:
        raise ValueError(f"dual_clip must be above 1, not {dual_clip}.")
    far_BT = (advantage_BT < 0) & (ratio_BT > dual_clip)
    return torch.where(far_BT, torch.full_like(ratio_BT, dual_clip), out_BT)


def clip_active(
    ratio_BT: Tensor,
    advantage_BT: Tensor,
    *,
    eps_low: float = 0.2,
    eps_high: float = 0.28,
    clip: ClipMode = "paper",
    dual_clip: float | None = None,
) -> Tensor:
    """True where `clipped_surrogate` takes a clipped branch, that is, where the token has no gradient.

    Equation: A > 0 and rho > high, or A < 0 and (rho < low, or rho > c with a dual clip). Source: as
    `clipped_surrogate`. Shapes: both [B, T]; returns bool [B, T]. Errors: as `clipped_surrogate`.
    """
    low_BT, high_BT = _interval(advantage_BT, ratio_BT, eps_low, eps_high, clip)
    active_BT = ((advantage_BT > 0) & (ratio_BT > high_BT)) | ((advantage_BT < 0) & (ratio_BT < low_BT))
    return active_BT if dual_clip is None else active_BT | ((advantage_BT < 0) & (ratio_BT > dual_clip))


def importance_weight(
    logp_old_BT: Tensor, logp_behaviour_BT: Tensor, mask_BT: Tensor, *, cap: float = 2.0
) -> Tensor:
    """w[b,t] = min(pi_old / pi_behaviour, cap), detached; 1 outside the mask.

    Source: truncated importance sampling (Ionides 2008), between sampler and trainer as in Yao et al. 2025.
    Shapes: all [B, T], mask_BT bool; returns [B, T].
    Errors: ValueError on other shapes or a cap <= 0.

    Reduces to 1 when the trainer's policy is the one that sampled. It multiplies the surrogate, not the KL.
    """
    check_BT(logp_old_BT=logp_old_BT, logp_behaviour_BT=logp_behaviour_BT, mask_BT=mask_BT)
    if not cap > 0:
        raise ValueError(f"cap must be positive, not {cap}.")
    log_BT = (logp_old_BT - logp_behaviour_BT).detach().clamp(-LOG_RATIO_BOUND, LOG_RATIO_BOUND)
    return torch.where(mask_BT, log_BT.exp().clamp(max=cap), torch.ones_like(log_BT))


def _interval(
    advantage_BT: Tensor, ratio_BT: Tensor, eps_low: float, eps_high: float, clip: ClipMode
) -> tuple[Tensor, Tensor]:
    check_BT(ratio_BT=ratio_BT, advantage_BT=advantage_BT)
    if not 0 <= eps_low < 1 or not eps_high >= 0:
        raise ValueError(f"eps_low must lie in [0, 1) and eps_high be >= 0, not {eps_low} and {eps_high}.")
    low_BT = torch.full_like(ratio_BT, 1 - eps_low)
    high_BT = torch.full_like(ratio_BT, 1 + eps_high)
    if clip == "mirrored":
        negative_BT = advantage_BT < 0
        low_BT = torch.where(negative_BT, torch.full_like(low_BT, 1 - eps_high), low_BT)
        high_BT = torch.where(negative_BT, torch.full_like(high_BT, 1 + eps_low), high_BT)
    elif clip != "paper":
        raise ValueError(f"clip must be paper or mirrored, not {clip!r}.")
    return low_BT, high_BT
