"""Advantages of the two signals and their weighted sum."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from stereorl.core.shapes import check_B, check_BT, check_mask

Baseline = Literal["running", "batch", "none"]


def evaluative_advantage(
    reward_B: Tensor,
    has_reward_B: Tensor,
    *,
    baseline: Baseline = "running",
    running_mean: float = 0.0,
    decay: float = 0.9,
) -> tuple[Tensor, float]:
    """A_eval[b] = reward[b] - baseline on rows with a reward, 0 on the others.

    Equation: `none`: A = r (the paper's form). `batch`: A = r - mean(r). `running`: A = r - m, with m the
        mean of *earlier* batches; then m' = decay * m + (1 - decay) * mean(r). Means are over rewarded rows.
    Source: arXiv 2603.10165 (`none`); Williams 1992, REINFORCE with a baseline.
    Shapes: reward_B and has_reward_B (bool) [B]; returns (A_B [B], m'). m' equals m when no row has a reward.
    Errors: ValueError on other shapes, a mask that is not boolean, an unknown baseline, decay outside [0, 1).

    A running mean that starts at 0 leaves a first batch of only -1 as a signal, where `batch` makes it 0.
    """
    check_B(reward_B=reward_B, has_reward_B=has_reward_B)
    check_mask(has_reward_B=has_reward_B)
    if not 0 <= decay < 1:
        raise ValueError(f"decay must lie in [0, 1), not {decay}.")
    if baseline not in ("running", "batch", "none"):
        raise ValueError(f"baseline must be running, batch or none, not {baseline!r}.")
    present = reward_B[has_reward_B]
    batch_mean = float(present.mean()) if len(present) else None
    subtract = 0.0
    if baseline == "running":
        subtract = running_mean
    elif baseline == "batch" and batch_mean is not None:
        subtract = batch_mean
    adv_B = torch.where(has_reward_B, reward_B - subtract, torch.zeros_like(reward_B))
    new_mean = running_mean if batch_mean is None else decay * running_mean + (1 - decay) * batch_mean
    return adv_B, new_mean


def directive_gap(
    logp_teacher_BT: Tensor, logp_student_BT: Tensor, mask_BT: Tensor, *, clip: float | None = None
) -> Tensor:
    """gap[b,t] = clip(log pi_teacher(a_t | s + hint) - log pi_student_old(a_t | s), -C, C), detached.

    Source: arXiv 2603.10165 (unclipped); its second version clips at C = 1 (personal) or 2.
    Shapes: all [B, T]; mask_BT (bool) is True where the teacher's log-prob exists; elsewhere the gap is 0,
        whatever the tensors hold there (also NaN).
    Errors: ValueError on other shapes, a mask that is not boolean, or C <= 0.

    The gap of an identical teacher is 0. Unclipped, single tokens of 5-10 nats drown a reward of +-1.
    """
    check_BT(logp_teacher_BT=logp_teacher_BT, logp_student_BT=logp_student_BT, mask_BT=mask_BT)
    check_mask(mask_BT=mask_BT)
    if clip is not None and not clip > 0:
        raise ValueError(f"clip must be positive, not {clip}.")
    gap_BT = (logp_teacher_BT - logp_student_BT).detach()
    if clip is not None:
        gap_BT = gap_BT.clamp(-clip, clip)
    return torch.where(mask_BT, gap_BT, torch.zeros_like(gap_BT))


def advantage_sum(
    adv_eval_BT: Tensor,
    gap_BT: Tensor,
    *,
    has_reward_B: Tensor,
    has_teacher_B: Tensor,
    mask_BT: Tensor,
    w_eval: float = 1.0,
    w_dir: float = 1.0,
) -> Tensor:
    """A[b,t] = w_eval * has_reward[b] * A_eval[b,t] + w_dir * has_teacher[b] * gap[b,t], 0 outside the mask.

    Source: arXiv 2603.10165, the combined method, with an explicit mask per signal.
    Shapes: adv_eval_BT, gap_BT, mask_BT (bool) [B, T]; has_reward_B, has_teacher_B (bool) [B].
    Errors: ValueError on other shapes or masks that are not boolean.

    Reduces to the evaluative advantage at w_dir = 0 and to the directive gap at w_eval = 0.
    """
    rows, _ = check_BT(adv_eval_BT=adv_eval_BT, gap_BT=gap_BT, mask_BT=mask_BT)
    check_B(rows, has_reward_B=has_reward_B, has_teacher_B=has_teacher_B)
    check_mask(mask_BT=mask_BT, has_reward_B=has_reward_B, has_teacher_B=has_teacher_B)
    zero = torch.zeros_like(gap_BT)
    eval_BT = torch.where(mask_BT & has_reward_B[:, None], adv_eval_BT, zero)
    dir_BT = torch.where(mask_BT & has_teacher_B[:, None], gap_BT, zero)
    return w_eval * eval_BT + w_dir * dir_BT
