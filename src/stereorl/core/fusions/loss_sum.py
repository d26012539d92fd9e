"""Two losses, each the mean over the tokens that carry its signal, then weighed."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from stereorl.core.aggregate import weighted_sum
from stereorl.core.fusions.base import Clipped
from stereorl.core.schedule import Weights
from stereorl.core.streams import Objective, Streams


@dataclass(frozen=True, slots=True, kw_only=True)
class LossSum(Clipped):
    """Two separately clipped and separately normalised losses.

    Equation: loss = w_eval * mean_{rewarded}(w_is L_clip(A_eval)) + w_dir * mean_{taught, |A_dir| > tau}(w_is
    L_clip(A_dir))
        + w_dir * mean_{taught}(L_dir) + kl_coef * KL.
    Source: the trainer of the first seed article (tau = 0.1; there without a ratio, which is the same at ratio 1).
    Shapes: see `Streams`. Errors: ValueError from the parts it calls.

    Unlike in a sum of advantages, a batch with one hint among seven rewards gives the hint its whole weight. The tokens
    below tau hand their share to the others of their row, so that micro-batches still add up.
    """

    token_threshold: float = 0.1

    def __call__(self, s: Streams, weights: Weights, /) -> Objective:
        d = self.estimator(s)
        adv_eval_BT = self.evaluative(s)
        (eval_BT,) = self.surrogates(s, adv_eval_BT)
        (dir_BT,) = self.surrogates(s, d.advantage_BT)
        kept_BT = _kept(s.weight_dir_BT, d.advantage_BT.abs() > self.token_threshold)
        distilled = weighted_sum(dir_BT, kept_BT) + weighted_sum(d.loss_BT, s.weight_dir_BT)
        terms = {
            "eval": weights.eval * weighted_sum(eval_BT, s.weight_eval_BT),
            "dir": weights.dir * distilled,
        }
        total_BT = weights.eval * adv_eval_BT + weights.dir * d.advantage_BT
        return self.objective(s, d, terms=terms, advantage_BT=total_BT)


def _kept(weight_BT: Tensor, keep_BT: Tensor) -> Tensor:
    """The weights of kept tokens, raised so that each row keeps its sum; 0 in a row that keeps none."""
    left_BT = torch.where(keep_BT, weight_BT, torch.zeros_like(weight_BT))
    row_B1, left_B1 = weight_BT.sum(1, keepdim=True), left_BT.sum(1, keepdim=True)
    return torch.where(
        left_B1 > 0, left_BT * row_B1 / left_B1.clamp(min=torch.finfo(left_BT.dtype).tiny), left_BT
    )
