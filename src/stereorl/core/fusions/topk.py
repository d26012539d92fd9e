"""The paper's second version: two losses, the directive one over the likeliest entries of each token."""

from __future__ import annotations

from dataclasses import dataclass

from stereorl.core.aggregate import weighted_sum
from stereorl.core.estimators import Estimator, TopKClip
from stereorl.core.fusions.base import Clipped
from stereorl.core.schedule import Weights
from stereorl.core.streams import Objective, Streams

_LIKELIEST = TopKClip()


@dataclass(frozen=True, slots=True, kw_only=True)
class TopK(Clipped):
    """Two losses under one denominator, each with its own clip.

    Equation: loss = mean(w_eval * w_is L_clip(A_eval) + w_dir * (w_is L_clip(A_dir) + L_dir) + kl_coef * KL), L_dir by
        default `TopKClip`.
    Source: arXiv 2603.10165, second version. Shapes: see `Streams`. Errors: ValueError from the parts it calls.

    With the estimator at K = V, ratio 1 and no gap clip, it has the gradient of `Full`.
    """

    estimator: Estimator = _LIKELIEST

    def __call__(self, s: Streams, weights: Weights, /) -> Objective:
        d = self.estimator(s)
        adv_eval_BT = self.evaluative(s)
        (eval_BT,) = self.surrogates(s, adv_eval_BT)
        (dir_BT,) = self.surrogates(s, d.advantage_BT)
        terms = {
            "eval": weights.eval * weighted_sum(eval_BT, s.weight_BT),
            "dir": weights.dir * weighted_sum(dir_BT + d.loss_BT, s.weight_BT),
        }
        total_BT = weights.eval * adv_eval_BT + weights.dir * d.advantage_BT
        return self.objective(s, d, terms=terms, advantage_BT=total_BT)
