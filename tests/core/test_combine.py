"""Gradients combined: no conflict gives the sum; a conflict by hand; nobody else's random state moves."""

from __future__ import annotations

import sys

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from stereorl.core import PCGrad, Sum, UPGrad, norm
from stereorl.core.conflict import dot

NAN, INF = float("nan"), float("inf")


def vector(*values):
    return torch.tensor(values, dtype=torch.float64)


def close(actual, *expected, atol=1e-6):
    torch.testing.assert_close(actual, vector(*expected), rtol=0, atol=atol)


@pytest.fixture(params=[Sum, PCGrad, UPGrad])
def combiner(request):
    if request.param is not Sum:
        pytest.importorskip("torchjd")
    return request.param()


@pytest.fixture(params=[PCGrad, UPGrad])
def projection(request):
    pytest.importorskip("torchjd")
    return request.param()


def test_without_conflict_every_combiner_is_the_sum(combiner):
    close(combiner([vector(1, 0, 2), vector(0, 3, 1)]), 1, 3, 3, atol=0)  # g1.g2 = 2
    close(combiner([vector(1, 0), vector(0, 1)]), 1, 1, atol=0)  # g1.g2 = 0
    close(combiner([vector(1, 0, 0), vector(1, 1, 0), vector(0, 1, 5)]), 2, 2, 5, atol=0)


def test_one_gradient_is_itself_and_a_new_tensor(combiner):
    gradient = vector(1, -2)
    out = combiner([gradient])
    out += 1
    assert gradient.tolist() == [1, -2]
    close(out, 2, -1, atol=0)


def test_zero_gradients_change_nothing(combiner):
    zero = torch.zeros(2, dtype=torch.float64)
    close(combiner([zero, zero]), 0, 0, atol=0)
    close(combiner([zero, vector(1, -2)]), 1, -2, atol=0)
    close(combiner([vector(1, 0), zero, vector(-1, 1)]), *combiner([vector(1, 0), vector(-1, 1)]).tolist())


def test_a_conflict_by_hand(projection):
    """g1 = (1, 0), g2 = (-1, 1): g1.g2 = -1.

    g1 - (-1 / 2) g2 = (.5, .5) and g2 - (-1 / 1) g1 = (0, 1), both in the cone: the sum is (.5, 1.5).
    """
    close(Sum()([vector(1, 0), vector(-1, 1)]), 0, 1)
    close(projection([vector(1, 0), vector(-1, 1)]), 0.5, 1.5)


def test_opposite_gradients_cancel(projection):
    # each loses all of itself, also where one is the larger: the sum would follow that one alone
    close(projection([vector(1, 0), vector(-1, 0)]), 0, 0)
    close(projection([vector(1, 0), vector(-3, 0)]), 0, 0)


def test_three_gradients_by_hand():
    """g1 = (1, 0), g2 = (-1, 1), g3 = (0, 1): the cone {x: x1 >= 0, x2 >= x1, x2 >= 0}.

    Nearest points: of (1, 0) it is (.5, .5) on the line x1 = x2; of (-1, 1) it is (0, 1); (0, 1) is in it.
    """
    pytest.importorskip("torchjd")
    close(UPGrad()([vector(1, 0), vector(-1, 1), vector(0, 1)]), 0.5, 2.5)


@pytest.mark.parametrize("size", [1e-12, 1e-3, 1.0, 1e6])
def test_a_projection_does_not_depend_on_the_unit(projection, size):
    gradients = [size * vector(1, 0), size * vector(-1, 1)]
    close(projection(gradients) / size, 0.5, 1.5)


def test_a_small_gradient_is_protected_from_a_large_one(projection):
    # g1 = (1000, 0), g2 = (-1, 1): (1000, 0) + 500 (-1, 1) = (500, 500) and (-1, 1) + (1, 0) = (0, 1)
    large, small = vector(1000, 0), vector(-1, 1)
    close(projection([large, small]), 500, 501)
    assert dot(Sum()([large, small]), small) < 0


rows = st.lists(st.floats(-10, 10), min_size=5, max_size=5)


@given(st.lists(rows, min_size=1, max_size=4), st.lists(st.integers(-6, 3), min_size=4, max_size=4))
def test_upgrad_harms_no_gradient(given_rows, exponents):
    pytest.importorskip("torchjd")
    gradients = [10.0**e * vector(*row) for row, e in zip(given_rows, exponents, strict=False)]
    out = UPGrad()(gradients)
    assert out.isfinite().all()
    for gradient in gradients:
        assert dot(out, gradient) >= -1e-6 * norm(gradient) * max(norm(g) for g in gradients)


@given(rows, rows)
def test_for_two_gradients_upgrad_reduces_to_pcgrad(first, second):
    pytest.importorskip("torchjd")
    gradients = [vector(*first), vector(*second)]
    torch.testing.assert_close(UPGrad()(gradients), PCGrad()(gradients), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_the_precision_is_the_gradients(combiner, dtype):
    out = combiner([torch.tensor([1.0, 0.0], dtype=dtype), torch.tensor([-1.0, 1.0], dtype=dtype)])
    assert out.dtype == dtype
    assert out.tolist() in ([0.0, 1.0], pytest.approx([0.5, 1.5], abs=1e-6))


def test_the_random_state_is_left_alone_and_the_result_is_the_same_each_time(projection):
    generator = torch.Generator().manual_seed(3)
    gradients = [torch.randn(6, generator=generator, dtype=torch.float64) for _ in range(5)]
    torch.manual_seed(1)
    before = torch.get_rng_state()
    first = projection(gradients)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(2)
    assert torch.equal(projection(gradients), first)
    assert not torch.equal(Sum()(gradients), first)  # there was a conflict


def test_seeds_of_accelerators_are_left_alone(monkeypatch):
    pytest.importorskip("torchjd")
    monkeypatch.setattr(torch.cuda, "manual_seed_all", lambda seed: pytest.fail("seeded"))
    PCGrad()([vector(1, 0), vector(-1, 1), vector(0, -1)])


@pytest.mark.parametrize("bad", [NAN, INF])
def test_a_gradient_that_is_not_finite_is_passed_on_for_the_caller_to_see(combiner, bad):
    gradients = [vector(bad, 1), vector(-1, -1)]
    out = combiner(gradients)
    assert not out.isfinite().all()
    torch.testing.assert_close(out, gradients[0] + gradients[1], rtol=0, atol=0, equal_nan=True)


def test_nothing_comes_with_a_graph(combiner):
    gradient = vector(1, 0).requires_grad_()
    assert not combiner([gradient, vector(-1, 1)]).requires_grad


def test_senseless_input_is_refused(combiner):
    with pytest.raises(ValueError, match="There is no gradient"):
        combiner([])
    with pytest.raises(ValueError, match="flat and of one size"):
        combiner([torch.ones(2), torch.ones(3)])
    with pytest.raises(ValueError, match="flat and of one size"):
        combiner([torch.ones(2, 2), torch.ones(2, 2)])


@pytest.mark.parametrize("kind", [PCGrad, UPGrad])
def test_without_torchjd_the_error_says_what_to_install(kind, monkeypatch):
    monkeypatch.setitem(sys.modules, "torchjd.aggregation", None)
    with pytest.raises(ImportError, match=r"pip install 'stereorl\[conflict\]'"):
        kind()


def test_without_its_solver_upgrad_says_what_to_install(monkeypatch):
    linalg = pytest.importorskip("torchjd.linalg")
    monkeypatch.setattr(linalg.QuadprogProjector, "_REQUIRED_DEPS", ["no_such_solver"])
    with pytest.raises(ImportError, match=r"pip install 'stereorl\[conflict\]'"):
        UPGrad()
    PCGrad()  # needs none
