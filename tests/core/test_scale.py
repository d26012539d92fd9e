"""Scales: root mean squares and deviations by hand, what is absent, and a state that survives a checkpoint."""

from __future__ import annotations

import json
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from stereorl.core import LossStd, NoScale, SignalRMS, SignalSizes, Weights, rms

NAN, INF = float("nan"), float("inf")
UNKNOWN = SignalSizes(None, None)


def factors(scale, losses):
    for eval_loss, dir_loss in losses:
        scale.observe(eval_loss, dir_loss)
    found = scale.scales(UNKNOWN)
    return found.eval, found.dir


def test_rms_by_hand_reads_the_mask_alone():
    value = torch.tensor([[3.0, -4.0, NAN], [0.0, 5.0, INF]])
    mask = torch.tensor([[True, True, False], [True, False, False]])
    assert rms(value, mask) == pytest.approx(math.sqrt((9 + 16 + 0) / 3), abs=1e-6)


def test_rms_of_nothing_is_not_known():
    assert rms(torch.ones(2, 3), torch.zeros(2, 3, dtype=torch.bool)) is None
    assert rms(torch.ones(0, 3), torch.ones(0, 3, dtype=torch.bool)) is None


def test_rms_of_one_size_is_that_size_also_in_half_precision():
    value = torch.tensor([[300.0, -300.0]], dtype=torch.float16)  # whose squares a half cannot hold
    assert rms(value, torch.ones(1, 2, dtype=torch.bool)) == pytest.approx(300.0, abs=1e-6)


def test_rms_refuses_other_shapes_and_masks():
    with pytest.raises(ValueError, match=r"mask_BT has shape \[2\]"):
        rms(torch.ones(1, 2), torch.ones(2, dtype=torch.bool))
    with pytest.raises(ValueError, match="mask_BT must be a boolean mask"):
        rms(torch.ones(1, 2), torch.ones(1, 2))


def test_no_scale_leaves_the_weights():
    scale = NoScale()
    scale.observe(5.0, 7.0)
    assert scale.scales(SignalSizes(3.0, 0.1)) == Weights(1.0, 1.0)


def test_signal_rms_by_hand():
    assert SignalRMS().scales(SignalSizes(0.5, 4.0)) == Weights(2.0, 0.25)


@pytest.mark.parametrize("size", [None, 0.0, 1e-7, NAN, INF])
def test_signal_rms_is_one_where_a_signal_is_absent_zero_or_not_finite(size):
    assert SignalRMS().scales(SignalSizes(size, 2.0)) == Weights(1.0, 0.5)
    assert SignalRMS().scales(SignalSizes(2.0, size)) == Weights(0.5, 1.0)


@given(st.lists(st.floats(-50, 50), min_size=1, max_size=20), st.floats(0.01, 100))
def test_a_signal_scaled_by_its_rms_has_size_one_whatever_its_unit(values, unit):
    value = unit * torch.tensor([values], dtype=torch.float64)
    mask = torch.ones_like(value, dtype=torch.bool)
    size = rms(value, mask)
    factor = SignalRMS().scales(SignalSizes(size, None)).eval
    assert rms(factor * value, mask) == pytest.approx(1.0 if size >= 1e-6 else size, abs=1e-6)


def test_loss_std_by_hand():
    # eval: 1, 3: mean 2, population std 1; dir: .5, 1, 1.5: mean 1, std sqrt((.25 + 0 + .25) / 3)
    found = factors(LossStd(), [(1.0, 0.5), (None, 1.0), (3.0, 1.5)])
    assert found == pytest.approx((1.0, 1 / math.sqrt(0.5 / 3)), abs=1e-6)


def test_loss_std_needs_two_losses_of_a_term():
    scale = LossStd()
    assert factors(scale, []) == (1.0, 1.0)
    assert factors(scale, [(7.0, None)]) == (1.0, 1.0)
    assert factors(scale, [(11.0, 5.0)]) == pytest.approx((0.5, 1.0), abs=1e-6)  # 7 and 11: std 2


def test_loss_std_is_bounded_both_ways():
    # a surrogate's loss that never moves has std 0: 10; losses 0 and 1000 have std 500: .1
    assert factors(LossStd(), [(0.0, 0.0), (0.0, 1000.0)]) == (10.0, pytest.approx(0.1))
    # just inside: losses 0 and .4 have std .2: 5; 0 and 8 have 4: .25
    assert factors(LossStd(), [(0.0, 0.0), (0.4, 8.0)]) == pytest.approx((5.0, 0.25), abs=1e-6)


def test_loss_std_looks_back_on_its_window():
    scale = LossStd(scale_window=2)
    # the last two: 2 and 6, std 2
    assert factors(scale, [(100.0, -100.0), (2.0, 2.0), (6.0, 6.0)]) == pytest.approx((0.5, 0.5), abs=1e-6)


def test_loss_std_does_not_depend_on_the_losses_mean():
    plain = factors(LossStd(), [(1.0, 2.0), (2.0, 5.0), (4.0, 2.0)])
    moved = factors(LossStd(), [(-9.0, 102.0), (-8.0, 105.0), (-6.0, 102.0)])
    assert moved == pytest.approx(plain, abs=1e-6)


def test_a_loss_that_is_not_finite_is_forgotten():
    assert factors(LossStd(), [(1.0, 1.0), (NAN, INF), (3.0, 5.0)]) == pytest.approx((1.0, 0.5), abs=1e-6)


losses = st.one_of(st.none(), st.floats(-1e3, 1e3), st.sampled_from([0.0, NAN, -INF]))


@given(history=st.lists(st.tuples(losses, losses), max_size=10), cut=st.integers(0, 10))
def test_a_resumed_scale_equals_an_uninterrupted_one(history, cut):
    whole, broken = LossStd(scale_window=4), LossStd(scale_window=4)
    for step, (eval_loss, dir_loss) in enumerate(history):
        if step == cut:
            state = json.loads(json.dumps(broken.state_dict(), allow_nan=False))
            broken = LossStd(scale_window=4)
            broken.load_state_dict(state)
        whole.observe(eval_loss, dir_loss)
        broken.observe(eval_loss, dir_loss)
        found = whole.scales(UNKNOWN)
        assert broken.scales(UNKNOWN) == found
        assert 0.1 <= min(found.eval, found.dir) <= max(found.eval, found.dir) <= 10


def test_a_state_is_a_copy_and_follows_the_window_it_is_loaded_into():
    scale = LossStd()
    factors(scale, [(100.0, 100.0), (2.0, 2.0), (6.0, 6.0)])
    state = scale.state_dict()
    state["eval"].clear()
    shorter = LossStd(scale_window=2)
    shorter.load_state_dict(scale.state_dict())
    assert factors(shorter, []) == pytest.approx((0.5, 0.5), abs=1e-6)


@pytest.mark.parametrize("kind", [NoScale, SignalRMS])
def test_a_scale_without_memory_refuses_a_state(kind):
    assert kind().state_dict() == {}
    kind().load_state_dict({})
    with pytest.raises(ValueError, match=f"{kind.__name__} has no state, but was given"):
        kind().load_state_dict({"eval": [1.0]})


def test_nonsense_is_refused():
    with pytest.raises(ValueError, match="scale_window must be at least 2, not 1"):
        LossStd(scale_window=1)
