"""How large two gradients are and whether they agree. Products are summed in double precision, a piece at a time."""

from __future__ import annotations

import math

import torch
from torch import Tensor

_PIECE = 1 << 20  # so that a gradient of millions is never copied whole


def dot(a_P: Tensor, b_P: Tensor) -> float:
    """a . b. Source: the definition. Shapes: both [P]. Errors: ValueError on other shapes."""
    if a_P.dim() != 1 or a_P.shape != b_P.shape:
        raise ValueError(f"Gradients must be flat and alike, not {list(a_P.shape)} and {list(b_P.shape)}.")
    a_P, b_P = a_P.detach(), b_P.detach()
    pieces = zip(torch.split(a_P, _PIECE), torch.split(b_P, _PIECE), strict=True)
    return sum(float(torch.dot(a.double(), b.double())) for a, b in pieces)


def norm(gradient_P: Tensor) -> float:
    """|g|, the Euclidean norm. Source: the definition. Shapes: [P]. Errors: ValueError on another shape."""
    return math.sqrt(dot(gradient_P, gradient_P))


def cosine(a_P: Tensor, b_P: Tensor) -> float | None:
    """a . b / (|a| |b|), in [-1, 1]: below 0 the two pull against each other. None when one of them is zero.

    Source: gradient similarity as in PCGrad (arXiv 2001.06782). Shapes: both [P]. Errors: ValueError on other shapes.
    NaN when a gradient is not finite.
    """
    product, size = dot(a_P, b_P), norm(a_P) * norm(b_P)
    if size == 0:
        return None
    similarity = product / size
    return similarity if math.isnan(similarity) else min(max(similarity, -1.0), 1.0)
