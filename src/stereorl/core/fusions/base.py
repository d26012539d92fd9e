"""What the fusions here share: the clipped surrogate split by signal, and the KL to the reference."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from stereorl.core.advantage import directive_gap
from stereorl.core.aggregate import weighted_sum
from stereorl.core.estimators import Directive, Estimator, Sampled
from stereorl.core.kl import KLKind, kl_estimate
from stereorl.core.streams import Needs, Objective, Streams
from stereorl.core.surrogate import ClipMode, clip_active, importance_weight, ratio, surrogate_ratio

_SAMPLED = Sampled()


@dataclass(frozen=True, slots=True, kw_only=True)
class Clipped:
    """Settings and parts. A fusion adds `__call__`; its `estimator` reads the directive signal."""

    estimator: Estimator = _SAMPLED
    clip: ClipMode = "paper"
    eps_low: float = 0.2
    eps_high: float = 0.28
    dual_clip: float | None = None
    kl: KLKind = "k3"
    kl_coef: float = 0.02
    importance_cap: float = 2.0

    @property
    def needs(self) -> Needs:
        return self.estimator.needs

    @property
    def bounds(self) -> dict[str, Any]:
        """The clip's settings, as the functions of `core.surrogate` take them."""
        return {
            "eps_low": self.eps_low,
            "eps_high": self.eps_high,
            "clip": self.clip,
            "dual_clip": self.dual_clip,
        }

    def evaluative(self, s: Streams) -> Tensor:
        """The evaluative advantage, 0 where there is none, [B, T]."""
        return torch.where(s.reward_mask_BT, s.adv_eval_BT, torch.zeros_like(s.logp_old_BT))

    def surrogates(self, s: Streams, *advantages_BT: Tensor) -> tuple[Tensor, ...]:
        """Each advantage's share of the one clipped, importance-weighted surrogate of their sum, [B, T] each."""
        rho_BT = ratio(s.logp_new_BT, s.logp_old_BT)
        total_BT = sum(advantages_BT, torch.zeros_like(rho_BT)).detach()
        factor_BT = surrogate_ratio(rho_BT, total_BT, **self.bounds) * self.importance(s)
        return tuple(-factor_BT * advantage_BT for advantage_BT in advantages_BT)

    def importance(self, s: Streams) -> Tensor:
        return importance_weight(s.logp_old_BT, s.logp_behaviour_BT, s.mask_BT, cap=self.importance_cap)

    def objective(
        self, s: Streams, d: Directive, *, terms: dict[str, Tensor], advantage_BT: Tensor
    ) -> Objective:
        """The signals' terms with the KL beside them, and per-token values for statistics."""
        kl_BT = kl_estimate(s.logp_new_BT, s.logp_ref_BT, kind=self.kl)
        rho_BT = ratio(s.logp_new_BT, s.logp_old_BT)
        tokens = {
            "raw_gap": directive_gap(s.logp_teacher_BT, s.logp_old_BT, s.teacher_mask_BT),
            "advantage": advantage_BT,
            "ratio": rho_BT,
            "clipped": clip_active(rho_BT, advantage_BT, **self.bounds),
            "importance": self.importance(s),
            "kl": kl_BT,
            **d.tokens,
        }
        kl = weighted_sum(kl_BT, s.weight_BT)
        return Objective(
            terms={**terms, "kl": self.kl_coef * kl},
            tokens={name: value.detach() for name, value in tokens.items()},
        )
