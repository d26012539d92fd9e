"""How large two gradients are and whether they agree."""

from __future__ import annotations

import torch
from torch import Tensor


def norm(gradient_P: Tensor) -> float:
    """|g|, the Euclidean norm. Shapes: [P]. Errors: ValueError on another shape. Source: the definition."""
    _check(gradient_P, gradient_P)
    return float(torch.linalg.vector_norm(gradient_P))


def cosine(a_P: Tensor, b_P: Tensor) -> float | None:
    """a.b / (|a| |b|): below 0 the two pull against each other. None when one of them is zero.

    Source: gradient similarity as in PCGrad (arXiv 2001.06782). Shapes: both [P]. Errors: ValueError on other shapes.
    """
    _check(a_P, b_P)
    size = norm(a_P) * norm(b_P)
    return float(torch.dot(a_P, b_P)) / size if size > 0 else None


def _check(a_P: Tensor, b_P: Tensor) -> None:
    if a_P.dim() != 1 or a_P.shape != b_P.shape:
        raise ValueError(f"Gradients must be flat and alike, not {list(a_P.shape)} and {list(b_P.shape)}.")
