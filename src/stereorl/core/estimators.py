"""How the directive signal is read: at the sampled token, at the K likeliest, or over the whole vocabulary.

An estimator gives an advantage for the sampled tokens, which a fusion puts through its clipped surrogate, or a loss of
its own with a gradient, or both.
"""

# ruff: noqa: N815 - shapes live in names

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor

from stereorl.core.advantage import directive_gap
from stereorl.core.divergence import divergence, mean_gap, reverse_kl, with_tail
from stereorl.core.streams import Needs, Streams, Support, SupportKind
from stereorl.core.surrogate import ClipMode, clip_active, clipped_surrogate, ratio


@dataclass(frozen=True, slots=True, eq=False)
class Directive:
    """`advantage_BT` is detached, `loss_BT` has a gradient; both [B, T], 0 where there is no teacher."""

    advantage_BT: Tensor
    loss_BT: Tensor
    tokens: dict[str, Tensor] = field(default_factory=dict)


class Estimator(Protocol):
    """Reads the directive signal off the streams. ValueError when they lack what `needs` names."""

    @property
    def needs(self) -> Needs: ...

    def __call__(self, streams: Streams, /) -> Directive: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampled:
    """The clipped gap at the sampled token, as an advantage.

    Equation: gap = clip(log pi_teacher(a) - log pi_old(a), -C, C); with the control variate gap - E_{v ~ pi}[gap(v)].
    Source: arXiv 2603.10165; control variate from vOPD (arXiv 2605.07865). Shapes: see `Streams`.
    Errors: ValueError from the parts it calls.
    """

    gap_clip: float | None = 1.0
    control_variate: bool = False

    @property
    def needs(self) -> Needs:
        return Needs(vocabulary=self.control_variate)

    def __call__(self, s: Streams) -> Directive:
        gap_BT = directive_gap(s.logp_teacher_BT, s.logp_old_BT, s.teacher_mask_BT, clip=self.gap_clip)
        nothing = torch.zeros_like(gap_BT)
        if not self.control_variate:
            return Directive(gap_BT, nothing, {"gap": gap_BT})
        with torch.no_grad():
            mean_BT = s.needed_vocabulary().map(partial(mean_gap, clip=self.gap_clip))
        left_BT = torch.where(s.teacher_mask_BT, gap_BT - mean_BT, nothing)
        return Directive(left_BT, nothing, {"gap": gap_BT, "mean_gap": mean_BT})


@dataclass(frozen=True, slots=True, kw_only=True)
class TopKClip:
    """A clipped surrogate for each of K entries, weighted by the old policy over them.

    Equation: w = softmax_S(log pi_old), A(v) = w(v) clip(log pi_teacher(v) - log pi_old(v), -C, C), detached;
        loss = sum over v in S of -min(rho(v) A(v), clip(rho(v), 1 - eps_low, 1 + eps_high) A(v)), with *global*
        log-probs: a ratio within S alone would let the policy empty S unpunished.
    Source: arXiv 2603.10165, second version (S the student's 4 likeliest). Shapes: see `Support`.
    Errors: ValueError without a support.

    At ratio 1 and without C, K = V has the gradient of the exact reverse KL, and its value.
    """

    top_k: int = 4
    support: SupportKind = "student"
    gap_clip: float | None = 1.0
    clip: ClipMode = "paper"
    eps_low: float = 0.2
    eps_high: float = 0.28
    dual_clip: float | None = None

    @property
    def needs(self) -> Needs:
        return Needs(top_k=self.top_k, support=self.support)

    def __call__(self, s: Streams) -> Directive:
        known = s.needed_support()
        old_BTK = known.logp_old_BTK.detach()
        mask_BTK = known.mask_BTK & s.teacher_mask_BT[..., None]
        weight_BTK = _softmax(old_BTK, mask_BTK)
        shape = (old_BTK.shape[0], -1)
        flat_mask = mask_BTK.reshape(shape)
        gap_BTK = directive_gap(
            known.logp_teacher_BTK.reshape(shape), old_BTK.reshape(shape), flat_mask, clip=self.gap_clip
        ).view(old_BTK.shape)
        new_BTK = torch.where(mask_BTK, known.logp_new_BTK, torch.zeros_like(old_BTK))
        rho_BX = ratio(new_BTK.reshape(shape), torch.where(mask_BTK, old_BTK, new_BTK).reshape(shape))
        adv_BX = (gap_BTK * weight_BTK).reshape(shape)
        bounds: dict[str, Any] = {
            "clip": self.clip,
            "eps_low": self.eps_low,
            "eps_high": self.eps_high,
            "dual_clip": self.dual_clip,
        }
        loss_BX = clipped_surrogate(rho_BX, adv_BX, **bounds)
        loss_BT = loss_BX.view(old_BTK.shape).sum(-1)
        clipped_BT = clip_active(rho_BX, adv_BX, **bounds).view(old_BTK.shape).any(-1)
        return Directive(
            torch.zeros_like(loss_BT).detach(),
            loss_BT,
            {"gap": (gap_BTK * weight_BTK).sum(-1), "support_clipped": clipped_BT},
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TopKTail:
    """A divergence over K entries and one bin for the rest, as a loss.

    Equation: `divergence` of the two (K + 1)-distributions that `with_tail` makes; alpha 1: reverse KL.
    Source: SDPO (arXiv 2601.20802, K = 100); teacher's support: arXiv 2603.25562. Shapes: see `Support`.
    Errors: ValueError without a support, or alpha outside [0, 1].

    K = V equals `Full`. The gap is not clipped: a divergence weighs each entry by its probability.
    """

    top_k: int = 20
    support: SupportKind = "student"
    divergence_alpha: float = 1.0

    @property
    def needs(self) -> Needs:
        return Needs(top_k=self.top_k, support=self.support)

    def __call__(self, s: Streams) -> Directive:
        known = s.needed_support()
        present_BT = known.mask_BTK.any(-1) & s.teacher_mask_BT
        loss_BT = self._loss(known, present_BT)
        return Directive(torch.zeros_like(loss_BT).detach(), loss_BT, {"divergence": loss_BT.detach()})

    def _loss(self, known: Support, present_BT: Tensor) -> Tensor:
        mask_NK = known.mask_BTK[present_BT]
        new_NK = with_tail(known.logp_new_BTK[present_BT], mask_NK)
        teacher_NK = with_tail(known.logp_teacher_BTK[present_BT].detach(), mask_NK)
        keep = torch.cat([mask_NK, torch.ones_like(mask_NK[:, :1])], dim=1)
        off = torch.full_like(new_NK, -60.0)  # exp of it is 0 in float32; -inf would make NaN of a difference
        value_N = divergence(
            torch.where(keep, new_NK, off), torch.where(keep, teacher_NK, off), alpha=self.divergence_alpha
        )
        out = torch.zeros(present_BT.shape, dtype=value_N.dtype, device=value_N.device)
        return out.masked_scatter(present_BT, value_N)


@dataclass(frozen=True, slots=True, kw_only=True)
class Full:
    """The exact divergence over the whole vocabulary, as a loss.

    Equation: `divergence(log pi_new, log pi_teacher, alpha)`; alpha 1: sum_v pi(v) (log pi(v) - log pi_teacher(v)).
    Source: GKD (arXiv 2306.13649). Shapes: see `Vocabulary`. Errors: ValueError without a vocabulary.
    """

    divergence_alpha: float = 1.0

    @property
    def needs(self) -> Needs:
        return Needs(vocabulary=True)

    def __call__(self, s: Streams) -> Directive:
        measure = (
            reverse_kl if self.divergence_alpha == 1 else partial(divergence, alpha=self.divergence_alpha)
        )
        loss_BT = s.needed_vocabulary().map(measure)
        loss_BT = torch.where(s.teacher_mask_BT, loss_BT, torch.zeros_like(loss_BT))
        return Directive(torch.zeros_like(loss_BT).detach(), loss_BT, {"divergence": loss_BT.detach()})


def _softmax(logp_BTK: Tensor, mask_BTK: Tensor) -> Tensor:
    """Softmax over the masked entries; all 0 where there is none."""
    some = mask_BTK.any(-1, keepdim=True)
    low = torch.where(mask_BTK, logp_BTK, torch.full_like(logp_BTK, -torch.inf))
    return torch.where(some, low, torch.zeros_like(low)).softmax(-1) * mask_BTK
