"""From the two signals' gradients to one. The projections come from torchjd, an optional dependency."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor


class Combiner(Protocol):
    """Flat gradients [P] -> one [P]. Without conflict every combiner gives their sum. ValueError when there is none."""

    def __call__(self, gradients: Sequence[Tensor], /) -> Tensor: ...


@dataclass(frozen=True, slots=True)
class Sum:
    """g = sum of g_i: the gradient of the summed loss. Source: none needed. Shapes and errors: see `Combiner`."""

    def __call__(self, gradients: Sequence[Tensor], /) -> Tensor:
        first, *others = _some(gradients)
        total = first.clone()
        for gradient in others:
            total += gradient
        return total


@dataclass(frozen=True, slots=True)
class PCGrad:
    """Where g_i . g_j < 0, g_i loses its part along g_j; then the sum.

    Equation: g_i <- g_i - (g_i . g_j) / |g_j|^2 g_j if g_i . g_j < 0.
    Source: Yu et al. 2020 (arXiv 2001.06782), by torchjd. Shapes and errors: see `Combiner`; ImportError
    without torchjd.
    """

    def __post_init__(self) -> None:
        _torchjd()

    def __call__(self, gradients: Sequence[Tensor], /) -> Tensor:
        return _aggregate(lambda n: _torchjd().PCGrad(), gradients)


@dataclass(frozen=True, slots=True)
class UPGrad:
    """Each gradient is projected onto the cone of directions that harm none; then the sum.

    Source: Quinton and Rey 2024 (arXiv 2406.16232), by torchjd. Shapes and errors: see `Combiner`; ImportError without
    torchjd, quadprog or qpsolvers.

    No term's loss rises to first order: g . g_i >= 0 for every i.
    """

    def __post_init__(self) -> None:
        _torchjd()

    def __call__(self, gradients: Sequence[Tensor], /) -> Tensor:
        return _aggregate(lambda n: _torchjd().UPGrad(pref_vector=torch.ones(n)), gradients)


def _aggregate(make: Any, gradients: Sequence[Tensor]) -> Tensor:
    """torchjd's aggregator over the gradients that are not zero; its random order does not touch the global state."""
    given = _some(gradients)
    live = [gradient for gradient in given if bool(gradient.count_nonzero())]
    if len(live) < 2:
        return Sum()(given)
    aggregator = make(len(live))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        matrix = torch.stack(live)
        out: Tensor = aggregator.to(matrix)(matrix) if hasattr(aggregator, "to") else aggregator(matrix)
    return out


def _torchjd() -> Any:
    try:
        from torchjd import aggregation

        aggregation.UPGrad  # noqa: B018 - absent when its solvers are
    except (ImportError, AttributeError) as error:
        raise ImportError("Gradient projections need torchjd: pip install 'stereorl[conflict]'") from error
    return aggregation


def _some(gradients: Sequence[Tensor]) -> Sequence[Tensor]:
    if len(gradients) == 0:
        raise ValueError("There is no gradient to combine.")
    if any(gradient.dim() != 1 or gradient.shape != gradients[0].shape for gradient in gradients):
        raise ValueError("Gradients must be flat and of one size.")
    return gradients
