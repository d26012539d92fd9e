"""From the two signals' gradients to one. The projections come from torchjd, an optional dependency.

Only the products g_i . g_j are handed over: they say how much of each gradient to take, and the sum is made here.
Millions of weights are therefore never stacked, and the products are in double precision.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from stereorl.core.conflict import dot

_RIDGE = (
    1e-10  # keeps the quadratic programme of opposite gradients definite; far below a gradient's precision
)

Weighting = Callable[[Tensor], Tensor]  # products [N, N] of N gradients -> how much of each [N]


class Combiner(Protocol):
    """Flat gradients [P] -> a new one [P]. Where no two conflict, every combiner gives exactly their sum.

    So it does where a gradient is not finite: that is for the caller to see and refuse. A zero gradient
    conflicts with none. Errors: ValueError when there is none, or when they are not flat and of one size.
    """

    def __call__(self, gradients: Sequence[Tensor], /) -> Tensor: ...


@dataclass(frozen=True, slots=True)
class Sum:
    """g = sum of g_i: the gradient of the summed loss. Source: none needed. Shapes and errors: see `Combiner`."""

    def __call__(self, gradients: Sequence[Tensor], /) -> Tensor:
        return _mix(gradients, [1.0] * len(gradients))


@dataclass(frozen=True, slots=True)
class PCGrad:
    """Where g_i . g_j < 0, g_i loses its part along g_j; then the sum.

    Equation: g_i <- g_i - (g_i . g_j) / |g_j|^2 g_j if g_i . g_j < 0, over the other j in random order (of a
        fixed seed that touches no other random state; for two gradients there is no order).
    Source: Yu et al. 2020 (arXiv 2001.06782), by torchjd. Shapes and errors: see `Combiner`; ImportError
        without torchjd.
    """

    def __post_init__(self) -> None:
        _pcgrad()

    def __call__(self, gradients: Sequence[Tensor], /) -> Tensor:
        def taken(products_NN: Tensor) -> Tensor:
            with torch.random.fork_rng(devices=[]):
                torch.default_generator.manual_seed(0)
                return _pcgrad()(products_NN)

        return _resolve(gradients, taken)


@dataclass(frozen=True, slots=True)
class UPGrad:
    """Each gradient is projected onto the cone of directions that harm none; then the sum.

    Equation: g = sum of pi(g_i), with pi(x) the point nearest to x of {y: y . g_j >= 0 for every j}. The cone
        depends on directions alone, so it is built from g_j / |g_j|: a gradient is protected however small.
    Source: Quinton and Rey 2024 (arXiv 2406.16232), by torchjd. Shapes and errors: see `Combiner`; ImportError
        without torchjd, quadprog or qpsolvers.

    No term's loss rises to first order: g . g_i >= 0 for every i. For two gradients it equals PCGrad.
    """

    def __post_init__(self) -> None:
        _upgrad(torch.ones(1))

    def __call__(self, gradients: Sequence[Tensor], /) -> Tensor:
        def taken(products_NN: Tensor) -> Tensor:
            norm_N = products_NN.diagonal().sqrt()
            share_N = norm_N / norm_N.max()
            cosines_NN = products_NN / norm_N[:, None] / norm_N[None, :]
            return _upgrad(share_N)(cosines_NN) / share_N

        return _resolve(gradients, taken)


def _resolve(gradients: Sequence[Tensor], taken: Weighting) -> Tensor:
    """The gradients mixed as `taken` says of those that are not zero, where two of them conflict."""
    _check(gradients)
    products_NN = _products(gradients)
    live_N = products_NN.diagonal() != 0
    share_N = torch.ones(len(gradients), dtype=torch.float64)
    if bool(products_NN.isfinite().all()) and bool((products_NN < 0).any()):
        share_N[live_N] = taken(products_NN[live_N][:, live_N])
    return _mix(gradients, share_N.tolist())


def _products(gradients: Sequence[Tensor]) -> Tensor:
    """g_i . g_j [N, N], on the processor: N is a handful."""
    products_NN = torch.empty(len(gradients), len(gradients), dtype=torch.float64)
    for i, a_P in enumerate(gradients):
        for j, b_P in enumerate(gradients[: i + 1]):
            products_NN[i, j] = products_NN[j, i] = dot(a_P, b_P)
    return products_NN


def _mix(gradients: Sequence[Tensor], shares: Sequence[float]) -> Tensor:
    _check(gradients)
    total_P = gradients[0].detach() * shares[0]
    for gradient_P, share in zip(gradients[1:], shares[1:], strict=True):
        total_P.add_(gradient_P.detach(), alpha=share)
    return total_P


def _check(gradients: Sequence[Tensor]) -> None:
    if len(gradients) == 0:
        raise ValueError("There is no gradient to combine.")
    if any(gradient_P.dim() != 1 or gradient_P.shape != gradients[0].shape for gradient_P in gradients):
        raise ValueError("Gradients must be flat and of one size.")


def _pcgrad() -> Weighting:
    try:
        from torchjd.aggregation import PCGradWeighting
    except ImportError as error:
        raise _missing() from error
    weighting: Any = PCGradWeighting()
    return weighting  # type: ignore[no-any-return]


def _upgrad(preference_N: Tensor) -> Weighting:
    try:
        from torchjd.aggregation import UPGradWeighting
        from torchjd.linalg import QuadprogProjector

        weighting: Any = UPGradWeighting(preference_N, QuadprogProjector(norm_eps=0.0, reg_eps=_RIDGE))
    except ImportError as error:
        raise _missing() from error
    return weighting  # type: ignore[no-any-return]


def _missing() -> ImportError:
    return ImportError("Gradient projections need torchjd and its solver: pip install 'stereorl[conflict]'")
