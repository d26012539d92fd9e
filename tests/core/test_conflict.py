"""Norms and cosines of gradients: by hand, of any size, and what is not known."""

from __future__ import annotations

import math

import pytest
import torch

from stereorl.core import cosine, norm
from stereorl.core.conflict import dot

NAN = float("nan")


def vector(*values):
    return torch.tensor(values, dtype=torch.float64)


def test_norm_and_cosine_by_hand():
    assert norm(vector(3, -4)) == 5.0
    assert dot(vector(1, 2, 3), vector(4, -5, 6)) == 4 - 10 + 18
    # (1, 0).(1, 1) / sqrt 2;  (3, 4).(-4, 3) = 0;  (1, 2).(-2, -4) / (sqrt 5 * sqrt 20) = -10 / 10
    assert cosine(vector(1, 0), vector(1, 1)) == pytest.approx(math.sqrt(0.5), abs=1e-6)
    assert cosine(vector(3, 4), vector(-4, 3)) == 0.0
    assert cosine(vector(1, 2), vector(-2, -4)) == pytest.approx(-1.0, abs=1e-6)


def test_cosine_with_zero_is_not_known_and_with_nan_is_nan():
    assert cosine(vector(0, 0), vector(1, 1)) is None
    assert cosine(vector(1, 1), vector(0, 0)) is None
    assert math.isnan(cosine(vector(NAN, 1), vector(1, 1)))
    assert math.isnan(norm(vector(NAN, 1)))


def test_cosine_is_exact_for_tiny_huge_and_many_numbers():
    # single precision loses their squares
    tiny, huge = torch.tensor([1e-30, 1e-30]), torch.tensor([1e30, 0.0])
    assert cosine(tiny, huge) == pytest.approx(math.sqrt(0.5), abs=1e-6)
    many = torch.full((3_000_001,), 0.1)  # more than one piece
    assert norm(many) == pytest.approx(float(many[0].double()) * math.sqrt(3_000_001), rel=1e-10)
    assert cosine(many, -many) == pytest.approx(-1.0, abs=1e-12)


@pytest.mark.parametrize("other", [torch.ones(3), torch.ones(2, 1)])
def test_conflict_refuses_other_shapes(other):
    with pytest.raises(ValueError, match="Gradients must be flat and alike"):
        cosine(torch.ones(2), other)
