"""Each reply learns from one signal only: what pleased from its reward, what failed from its teacher."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from stereorl.core.aggregate import weighted_sum
from stereorl.core.divergence import entropy
from stereorl.core.fusions.base import Clipped
from stereorl.core.schedule import Weights
from stereorl.core.streams import Needs, Objective, Streams


@dataclass(frozen=True, slots=True, kw_only=True)
class Route(Clipped):
    """Success -> reinforcement; failure with a teacher -> distillation; failure without one -> reinforcement.

    Equation: z = has_teacher and not (reward > 0); loss = mean((1 - z) w_eval w_is L_clip(A_eval)
        + z w_dir u (w_is L_clip(A_dir) + L_dir) + kl_coef * KL), u = exp(-beta H_teacher) over its mean in the row.
    Source: SRPO (arXiv 2604.02288), where beta is 1. Shapes: see `Streams`.
    Errors: ValueError from the parts it calls, and without a vocabulary when beta > 0.

    A reply without a reward counts as a failure: it was corrected.
    """

    entropy_beta: float = 0.0

    @property
    def needs(self) -> Needs:
        return replace(
            self.estimator.needs, vocabulary=self.estimator.needs.vocabulary or self.entropy_beta > 0
        )

    def __call__(self, s: Streams, weights: Weights, /) -> Objective:
        d = self.estimator(s)
        pleased_B = s.has_reward_B & (s.reward_B > 0)
        distils_B1 = (s.has_teacher_B & ~pleased_B)[:, None]
        nothing = torch.zeros_like(s.logp_old_BT)
        adv_eval_BT = torch.where(distils_B1, nothing, self.evaluative(s))
        adv_dir_BT = torch.where(distils_B1, d.advantage_BT, nothing)
        (eval_BT,) = self.surrogates(s, adv_eval_BT)
        (dir_BT,) = self.surrogates(s, adv_dir_BT)
        distil_BT = self._certainty(s) * torch.where(distils_B1, dir_BT + d.loss_BT, nothing)
        terms = {
            "eval": weights.eval * weighted_sum(eval_BT, s.weight_BT),
            "dir": weights.dir * weighted_sum(distil_BT, s.weight_BT),
        }
        total_BT = weights.eval * adv_eval_BT + weights.dir * adv_dir_BT
        return self.objective(s, d, terms=terms, advantage_BT=total_BT)

    def _certainty(self, s: Streams) -> Tensor:
        """u: more weight where the teacher is sure; mean 1 over a row's taught tokens."""
        if not self.entropy_beta:
            return torch.ones_like(s.logp_old_BT)
        with torch.no_grad():
            entropy_BT = s.needed_vocabulary().map(lambda _, teacher_NV: entropy(teacher_NV))
        taught_BT = s.teacher_mask_BT
        untaught = torch.full_like(entropy_BT, -torch.inf)
        share_BT = torch.where(taught_BT, -self.entropy_beta * entropy_BT, untaught).softmax(1)
        return torch.where(taught_BT, share_BT * taught_BT.sum(1, keepdim=True), torch.zeros_like(entropy_BT))
