"""The paper's fusion: the signals are summed as advantages, before one clip."""

from __future__ import annotations

from dataclasses import dataclass

from stereorl.core.advantage import advantage_sum
from stereorl.core.aggregate import weighted_sum
from stereorl.core.fusions.base import Clipped
from stereorl.core.schedule import Weights
from stereorl.core.streams import Objective, Streams


@dataclass(frozen=True, slots=True, kw_only=True)
class AdvantageSum(Clipped):
    """One clipped surrogate on the summed advantage, plus a KL to the reference.

    Equation: A = w_eval * A_eval + w_dir * A_dir; loss = sum of weight * (w_is * L_clip(A) + w_dir * L_dir +
    kl_coef * KL),
        A_dir and L_dir from the estimator (`sampled`: A_dir is the clipped gap and L_dir 0; a divergence: the reverse).
    Source: arXiv 2603.10165, combined method; importance weight from Yao et al. 2025.
    Shapes: see `Streams`. Errors: ValueError from the parts it calls.

    Reduces to PPO at w_dir = 0 and to on-policy distillation at w_eval = 0. The surrogate's branch is chosen
    by the sum, so the terms "eval" and "dir" are exact shares of it. An importance weight corrects for who
    sampled the token, so it does not multiply a divergence, which sums over all of them.
    """

    def __call__(self, s: Streams, weights: Weights, /) -> Objective:
        d = self.estimator(s)
        parts = {"has_reward_B": s.has_reward_B, "has_teacher_B": s.has_teacher_B, "mask_BT": s.mask_BT}
        adv_eval_BT = advantage_sum(s.adv_eval_BT, d.advantage_BT, w_eval=weights.eval, w_dir=0.0, **parts)
        adv_dir_BT = advantage_sum(s.adv_eval_BT, d.advantage_BT, w_eval=0.0, w_dir=weights.dir, **parts)
        eval_BT, dir_BT = self.surrogates(s, adv_eval_BT, adv_dir_BT)
        terms = {
            "eval": weighted_sum(eval_BT, s.weight_BT),
            "dir": weighted_sum(dir_BT + weights.dir * d.loss_BT, s.weight_BT),
        }
        return self.objective(s, d, terms=terms, advantage_BT=adv_eval_BT + adv_dir_BT)
