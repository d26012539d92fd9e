"""Estimators of the KL divergence from the policy to the reference, from sampled tokens."""

from __future__ import annotations

from typing import Literal

from torch import Tensor

from stereorl.core.shapes import check_BT

KLKind = Literal["k1", "k2", "k3"]
_D_BOUND = 20.0  # exp(d) stays finite; k3 is clamped long before
_K3_BOUND = 10.0


def kl_estimate(logp_new_BT: Tensor, logp_ref_BT: Tensor, *, kind: KLKind = "k3") -> Tensor:
    """Per-token estimate of KL(pi_new || pi_ref), with d = log pi_ref - log pi_new.

    Equation: k1 = -d; k2 = d^2 / 2; k3 = clamp(exp(d) - 1 - d, -10, 10).
    Source: Schulman 2020, "Approximating KL divergence"; the clamp as in the reference's low_var_kl.
    Shapes: both [B, T]; returns [B, T]. No gradient reaches logp_ref_BT.
    Errors: ValueError on other shapes or an unknown kind.

    All are 0 at d = 0; under samples from pi_new, k1 and k3 have KL as their mean. As a *loss* k1 has zero
    expected gradient.
    """
    check_BT(logp_new_BT=logp_new_BT, logp_ref_BT=logp_ref_BT)
    d_BT = logp_ref_BT.detach() - logp_new_BT
    if kind == "k1":
        return -d_BT
    if kind == "k2":
        return d_BT.square() / 2
    if kind == "k3":
        bounded_BT = d_BT.clamp(-_D_BOUND, _D_BOUND)
        return (bounded_BT.expm1() - bounded_BT).clamp(-_K3_BOUND, _K3_BOUND)
    raise ValueError(f"kind must be k1, k2 or k3, not {kind!r}.")
