"""Divergences between two distributions over a vocabulary, per token, from log-probs in the last dimension."""

from __future__ import annotations

import math

import torch
from torch import Tensor

_TAIL_LEAST = 1e-7  # probability; below it a tail is nothing but rounding


def reverse_kl(logp_V: Tensor, logq_V: Tensor) -> Tensor:
    """KL(p || q) = sum_v p(v) (log p(v) - log q(v)); with p the student it seeks the teacher's mode.

    Source: Kullback and Leibler 1951; on-policy distillation as in GKD (arXiv 2306.13649).
    Shapes: both [..., V], normalised log-probs (-inf allowed in p); returns [...]. Errors: ValueError on other shapes.

    0 at p = q. The gradient flows to whichever side carries one.
    """
    _check(logp_V, logq_V)
    return _expectation(logp_V, logp_V - logq_V)


def forward_kl(logp_V: Tensor, logq_V: Tensor) -> Tensor:
    """KL(q || p) = sum_v q(v) (log q(v) - log p(v)); with p the student it covers all that the teacher does.

    Source, shapes, errors: as `reverse_kl`, of which it is the mirror image.
    """
    return reverse_kl(logq_V, logp_V)


def divergence(logp_V: Tensor, logq_V: Tensor, *, alpha: float = 1.0) -> Tensor:
    """The student p's divergence from the teacher q: 1 reverse KL, 0 forward KL, between them generalised JSD.

    Equation: with m = alpha q + (1 - alpha) p: alpha KL(q || m) + (1 - alpha) KL(p || m) for 0 < alpha < 1.
    Source: GKD (arXiv 2306.13649), whose beta alpha is; SDPO (arXiv 2601.20802) uses 0.5.
    Shapes: both [..., V]; returns [...]. Errors: ValueError on other shapes or alpha outside [0, 1].

    0 at p = q for every alpha. Divided by alpha it tends to the forward KL as alpha -> 0, by 1 - alpha to the reverse
    KL as alpha -> 1, so the ends are other scales, not limits.
    """
    if not 0 <= alpha <= 1:
        raise ValueError(f"alpha must lie in [0, 1], not {alpha}.")
    if alpha == 1:
        return reverse_kl(logp_V, logq_V)
    if alpha == 0:
        return forward_kl(logp_V, logq_V)
    _check(logp_V, logq_V)
    nowhere = logp_V.isneginf() & logq_V.isneginf()  # there logaddexp has no gradient
    p_V, q_V = logp_V.masked_fill(nowhere, 0.0), logq_V.masked_fill(nowhere, 0.0)
    logm_V = torch.logaddexp(q_V + math.log(alpha), p_V + math.log1p(-alpha))
    return alpha * reverse_kl(logq_V, logm_V) + (1 - alpha) * reverse_kl(logp_V, logm_V)


def with_tail(logp_K: Tensor, mask_K: Tensor | None = None) -> Tensor:
    """K log-probs and the log of what they leave: [..., K] -> [..., K + 1], a normalised distribution.

    Equation: tail = log(1 - sum over the mask of p), at least log 1e-7; masked entries become -inf (p = 0).
    Source: SDPO (arXiv 2601.20802), with K = 100. Errors: ValueError when the mask has another shape.

    A whole vocabulary leaves no tail: its share in a divergence is then 1e-7 times a difference of 0.
    """
    if mask_K is not None:
        if mask_K.shape != logp_K.shape:
            raise ValueError(f"mask_K has shape {list(mask_K.shape)}, but logp_K {list(logp_K.shape)}.")
        logp_K = logp_K.masked_fill(~mask_K, -math.inf)
    rest = (1 - logp_K.exp().sum(-1, keepdim=True)).clamp(min=_TAIL_LEAST)
    return torch.cat([logp_K, rest.log()], dim=-1)


def entropy(logp_V: Tensor) -> Tensor:
    """H = -sum_v p(v) log p(v), in nats. Shapes: [..., V] -> [...]. Source: Shannon 1948. Errors: none."""
    return _expectation(logp_V, -logp_V)


def mean_gap(logp_V: Tensor, logq_V: Tensor, *, clip: float | None = None) -> Tensor:
    """E_{v ~ p}[clip(log q(v) - log p(v), -C, C)]: what a sampled gap is on average, its control variate.

    Source: vOPD (arXiv 2605.07865), where C is none and this is -KL(p || q).
    Shapes: both [..., V]; returns [...]. Errors: ValueError on other shapes or C <= 0.

    A baseline that does not depend on the sampled token leaves the gradient's mean as it is and takes its variance.
    """
    _check(logp_V, logq_V)
    gap_V = logq_V - logp_V
    if clip is not None:
        if not clip > 0:
            raise ValueError(f"clip must be positive, not {clip}.")
        gap_V = gap_V.clamp(-clip, clip)
    return _expectation(logp_V, gap_V)


def _expectation(logp_V: Tensor, value_V: Tensor) -> Tensor:
    """sum p * value, where p = 0 silences whatever the value is, and its gradient."""
    nothing = logp_V.isneginf()
    p_V = logp_V.masked_fill(nothing, 0.0).exp().masked_fill(nothing, 0.0)
    return (p_V * value_V.masked_fill(nothing, 0.0)).sum(-1)


def _check(logp_V: Tensor, logq_V: Tensor) -> None:
    if logp_V.shape != logq_V.shape or logp_V.dim() < 1:
        raise ValueError(f"Shapes {list(logp_V.shape)} and {list(logq_V.shape)}: both must be [..., V].")
