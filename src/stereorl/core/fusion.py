"""How the two signals become one objective. A further fusion is a further class behind `Fusion`.

The trainer hands over per-token streams with masks and gets a loss back; it knows no algorithm.
"""

# ruff: noqa: N802, N815 - shapes live in names

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from stereorl.core.advantage import advantage_sum, directive_gap
from stereorl.core.aggregate import weighted_sum
from stereorl.core.kl import KLKind, kl_estimate
from stereorl.core.schedule import Weights
from stereorl.core.shapes import check_B, check_BT, check_mask
from stereorl.core.surrogate import ClipMode, clip_active, clipped_surrogate, importance_weight, ratio


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Streams:
    """What a fusion may read about a (micro-)batch. Gradient flows into `logp_new_BT` alone.

    Shapes: [B, T] by name suffix, [B] for the rest. `mask_BT` (bool) marks trained tokens, `weight_BT` their
    weights in the aggregate of the *whole* batch. `has_reward_B`, `has_teacher_B` (bool): where a signal is
    absent its stream may hold anything, also NaN; padding holds any finite number.
    All log-probs are of the sampled tokens, at the temperature they were sampled at. Raises ValueError on
    other shapes or masks.
    """

    logp_new_BT: Tensor
    logp_old_BT: Tensor
    logp_behaviour_BT: Tensor
    logp_ref_BT: Tensor
    logp_teacher_BT: Tensor
    adv_eval_BT: Tensor
    weight_BT: Tensor
    mask_BT: Tensor
    has_reward_B: Tensor
    has_teacher_B: Tensor

    def __post_init__(self) -> None:
        by_token = {name: getattr(self, name) for name in self.__slots__ if name.endswith("_BT")}
        rows, _ = check_BT(**by_token)
        check_B(rows, has_reward_B=self.has_reward_B, has_teacher_B=self.has_teacher_B)
        check_mask(mask_BT=self.mask_BT, has_reward_B=self.has_reward_B, has_teacher_B=self.has_teacher_B)

    @property
    def reward_mask_BT(self) -> Tensor:
        """Trained tokens that carry an evaluative signal."""
        return self.mask_BT & self.has_reward_B[:, None]

    @property
    def teacher_mask_BT(self) -> Tensor:
        """Trained tokens that carry a directive signal."""
        return self.mask_BT & self.has_teacher_B[:, None]


@dataclass(frozen=True, slots=True, eq=False)
class Objective:
    """`loss` is to be minimised; losses of micro-batches add up.

    `terms` are its detached parts, which add up too. `tokens` are detached per-token values [B, T] for
    statistics (`stereorl.core.statistics`).
    """

    loss: Tensor
    terms: dict[str, Tensor]
    tokens: dict[str, Tensor]


class Fusion(Protocol):
    """Makes one objective out of the streams, under the weights in force."""

    def __call__(self, streams: Streams, weights: Weights, /) -> Objective: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class AdvantageSum:
    """One clipped surrogate on the summed advantage, plus a KL to the reference.

    Equation: A = w_eval * A_eval + w_dir * gap; loss = sum of weight * (w_is * L_clip + kl_coef * kl).
    Source: arXiv 2603.10165, combined method; gap clip from its second version, importance
        weight from Yao et al. 2025.
    Shapes: see `Streams`. Errors: ValueError from the parts it calls.

    Reduces to PPO at w_dir = 0 and to sampled-token on-policy distillation at w_eval = 0.
    """

    gap_clip: float | None = 1.0
    clip: ClipMode = "paper"
    eps_low: float = 0.2
    eps_high: float = 0.28
    kl: KLKind = "k3"
    kl_coef: float = 0.02
    importance_cap: float = 2.0

    def __call__(self, s: Streams, weights: Weights) -> Objective:
        gap_BT = directive_gap(s.logp_teacher_BT, s.logp_old_BT, s.teacher_mask_BT, clip=self.gap_clip)
        advantage_BT = advantage_sum(
            s.adv_eval_BT,
            gap_BT,
            has_reward_B=s.has_reward_B,
            has_teacher_B=s.has_teacher_B,
            mask_BT=s.mask_BT,
            w_eval=weights.eval,
            w_dir=weights.dir,
        )
        ratio_BT = ratio(s.logp_new_BT, s.logp_old_BT)
        interval = {"eps_low": self.eps_low, "eps_high": self.eps_high}
        surrogate_BT = clipped_surrogate(ratio_BT, advantage_BT, clip=self.clip, **interval)
        weight_is_BT = importance_weight(
            s.logp_old_BT, s.logp_behaviour_BT, s.mask_BT, cap=self.importance_cap
        )
        kl_BT = kl_estimate(s.logp_new_BT, s.logp_ref_BT, kind=self.kl)
        surrogate = weighted_sum(weight_is_BT * surrogate_BT, s.weight_BT)
        kl = weighted_sum(kl_BT, s.weight_BT)
        tokens = {
            "gap": gap_BT,
            "raw_gap": directive_gap(s.logp_teacher_BT, s.logp_old_BT, s.teacher_mask_BT),
            "advantage": advantage_BT,
            "ratio": ratio_BT,
            "clipped": clip_active(ratio_BT, advantage_BT, clip=self.clip, **interval),
            "importance": weight_is_BT,
            "kl": kl_BT,
        }
        return Objective(
            loss=surrogate + self.kl_coef * kl,
            terms={"surrogate": surrogate.detach(), "kl": kl.detach()},
            tokens={name: value.detach() for name, value in tokens.items()},
        )
