"""Schedules: their ends, numbers by hand, and a state that moves with steps and survives a checkpoint."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stereorl.config import WeightsConfig
from stereorl.core import (
    Balance,
    Complementary,
    Constant,
    Cosine,
    Density,
    Linear,
    Performance,
    Progress,
    Weights,
)

NAN, INF = float("nan"), float("inf")


def near(weights: Weights, w_eval: float, w_dir: float) -> None:
    assert (weights.eval, weights.dir) == pytest.approx((w_eval, w_dir), abs=1e-6)


def rewarded(schedule, *rewards, first=1):
    """The weights after each of the updates whose mean rewards these are."""
    return [schedule.weights(Progress(first + i, mean_reward=r)).dir for i, r in enumerate(rewards)]


SCHEDULES = {
    "constant": lambda: Constant(0.3, 1.2),
    "linear": lambda: Linear(0.3, 1.2, w_eval_end=1.0, w_dir_end=0.05, steps=20),
    "cosine": lambda: Cosine(0.3, 1.2, w_eval_end=1.0, w_dir_end=0.05, steps=20),
    "performance": lambda: Performance(0.3, 1.2, threshold=0.2, window=3),
    "density": lambda: Density(0.3, 1.2, window=4),
    "balance": lambda: Balance(0.3, 1.2, window=4),
    "complementary": lambda: Complementary(0.9, 0.1, steps=20),
}
every = pytest.mark.parametrize("make", SCHEDULES.values(), ids=SCHEDULES)

readings = st.one_of(st.none(), st.floats(-1, 1), st.sampled_from([0.0, NAN, INF]))
histories = st.lists(st.tuples(readings, readings, readings, readings), max_size=12)


def progress(step, reading):
    reward, share, eval_norm, dir_norm = reading
    return Progress(step, reward, share, eval_norm, dir_norm)


def test_constant_is_constant():
    schedule = Constant(0.3, 1.2)
    assert schedule.weights(Progress(0)) == schedule.weights(Progress(10**6, 1.0, 1.0, 5.0, 1.0))
    assert schedule.weights(Progress(7)) == Weights(0.3, 1.2)


@pytest.mark.parametrize("kind", [Linear, Cosine])
def test_linear_and_cosine_at_their_ends_and_middle(kind):
    schedule = kind(0.25, 1.5, w_eval_end=1.0, w_dir_end=0.05, steps=40)
    assert schedule.weights(Progress(0)) == Weights(0.25, 1.5)
    assert schedule.weights(Progress(40)) == schedule.weights(Progress(41)) == Weights(1.0, 0.05)
    assert schedule.weights(Progress(10**9)) == Weights(1.0, 0.05)
    near(schedule.weights(Progress(20)), 0.625, 0.775)  # the means of the ends


def test_linear_by_hand():
    # a quarter of the way: .2 + .25 * (1 - .2) = .4;  2 - .25 * (2 - 1) = 1.75
    schedule = Linear(0.2, 2.0, w_eval_end=1.0, w_dir_end=1.0, steps=8)
    near(schedule.weights(Progress(2)), 0.4, 1.75)


def test_cosine_by_hand():
    # a quarter of the way: (1 - cos(pi / 4)) / 2 = (1 - sqrt(1/2)) / 2 of the way is done
    done = (1 - math.sqrt(0.5)) / 2
    schedule = Cosine(0.2, 2.0, w_eval_end=1.0, w_dir_end=1.0, steps=8)
    near(schedule.weights(Progress(2)), 0.2 + 0.8 * done, 2.0 - done)
    assert done == pytest.approx(0.1464466, abs=1e-6)


@pytest.mark.parametrize("kind", [Linear, Cosine])
def test_without_an_end_w_eval_stays_to_the_last_bit(kind):
    schedule = kind(0.3, 1.0, steps=7)
    assert {schedule.weights(Progress(step)).eval for step in range(10)} == {0.3}


@given(start=st.floats(0, 5), end=st.floats(0, 5), steps=st.integers(1, 60))
def test_linear_and_cosine_go_one_way_and_stay_between_their_ends(start, end, steps):
    for schedule in (Linear(1.0, start, w_dir_end=end, steps=steps), Cosine(1.0, start, None, end, steps)):
        path = [schedule.weights(Progress(step)).dir for step in range(steps + 2)]
        assert path == pytest.approx(sorted(path, reverse=end < start), abs=1e-12)
        assert path[0] == start
        assert path[-1] == end


def test_linear_reduces_to_constant_where_the_ends_are_one():
    schedule = Linear(0.3, 0.7, w_eval_end=0.3, w_dir_end=0.7, steps=9)
    assert {schedule.weights(Progress(step)) for step in range(12)} == {Weights(0.3, 0.7)}


def test_complementary_at_its_ends_and_clipped():
    schedule = Complementary(0.9, 0.1, steps=4)
    near(schedule.weights(Progress(0)), 0.1, 0.9)
    near(schedule.weights(Progress(1)), 0.3, 0.7)  # .9 - .8 / 4
    near(schedule.weights(Progress(4)), 0.9, 0.1)
    near(schedule.weights(Progress(99)), 0.9, 0.1)
    # from 2 to 0 in 4: 2, 1.5, 1, .5, 0, of which nothing above 1
    path = [Complementary(2.0, 0.0, steps=4).weights(Progress(step)) for step in range(5)]
    assert path == [Weights(1 - w, w) for w in (1.0, 1.0, 1.0, 0.5, 0.0)]


def test_performance_falls_above_the_threshold_and_recovers_below_it():
    schedule = Performance(0.3, 1.0, threshold=0.5, decay=0.5, floor=0.1, window=1)
    near(schedule.weights(Progress(0, mean_reward=1.0)), 0.3, 1.0)  # nothing is finished yet
    # at the threshold counts: 1 -> .5 -> .25 -> .125 -> max(.0625, .1), where it stays
    assert rewarded(schedule, 0.5, 1.0, 1.0, 1.0, 1.0) == pytest.approx([0.5, 0.25, 0.125, 0.1, 0.1])
    # below it: .1 -> .2 -> .4 -> .8 -> min(1.6, 1), where it stays
    assert rewarded(schedule, 0.4, -1.0, 0.0, 0.0, 0.0, first=6) == pytest.approx([0.2, 0.4, 0.8, 1.0, 1.0])


def test_performance_scores_by_the_mean_of_its_window():
    schedule = Performance(1.0, 1.0, threshold=0.5, decay=0.5, floor=0.0, window=2)
    # means of the last two: 1, (1 + 0) / 2 = .5, (0 + .9) / 2 = .45, (.9 + .1) / 2 = .5
    assert rewarded(schedule, 1.0, 0.0, 0.9, 0.1) == pytest.approx([0.5, 0.25, 0.5, 0.25])


def test_performance_does_not_move_where_the_reward_is_not_known():
    schedule = Performance(1.0, 1.0, threshold=0.0, decay=0.5, window=3)
    assert rewarded(schedule, 1.0, None, NAN, INF, 1.0) == pytest.approx([0.5, 0.5, 0.5, 0.5, 0.25])


def test_performance_never_raises_a_start_below_its_floor():
    schedule = Performance(1.0, 0.02, threshold=0.5, decay=0.5, floor=0.05, window=1)
    assert rewarded(schedule, 1.0, 0.0, 1.0) == [0.02, 0.02, 0.02]
    assert rewarded(Performance(1.0, 0.0, window=1), 1.0, -1.0) == [0.0, 0.0]


@given(st.lists(st.floats(-1, 1), max_size=40), st.floats(0, 2), st.floats(0, 1))
def test_performance_stays_between_floor_and_start(rewards, start, floor):
    path = rewarded(Performance(1.0, start, floor=floor, window=3), *rewards)
    assert all(min(floor, start) <= w_dir <= start for w_dir in path)


def test_density_by_hand():
    schedule = Density(0.3, 0.8, density_alpha=0.5, window=2)
    near(schedule.weights(Progress(0)), 0.3, 0.8)
    # means of the last two shares: .5, (.5 + 1) / 2 = .75, (1 + 0) / 2 = .5; unknown: .5 still; 0
    for step, (share, mean) in enumerate([(0.5, 0.5), (1.0, 0.75), (0.0, 0.5), (None, 0.5), (0.0, 0.0)], 1):
        near(schedule.weights(Progress(step, directive_share=share)), 0.3, 0.8 * (1 + 0.5 * mean))


def test_density_looks_back_on_ten_updates_unless_told():
    schedule = Density(1.0, 1.0, density_alpha=1.0)
    for step in range(1, 12):  # eleven shares, 1 and then ten times .5: the first is out of sight
        weights = schedule.weights(Progress(step, directive_share=1.0 if step == 1 else 0.5))
        near(weights, 1.0, 1 + ((1 + (step - 1) * 0.5) / step if step < 11 else 0.5))


def test_density_with_a_negative_alpha_ends_at_zero():
    near(Density(1.0, 0.5, density_alpha=-3.0).weights(Progress(1, directive_share=1.0)), 1.0, 0.0)


def normed(schedule, *norms, first=1):
    for step, (eval_norm, dir_norm) in enumerate(norms, first):
        weights = schedule.weights(Progress(step, eval_norm=eval_norm, dir_norm=dir_norm))
    return weights


def test_balance_by_hand():
    # w_eval' * 1 = w_dir' * 3 with sum 2: 1.5 and .5
    near(normed(Balance(1.0, 1.0), (1.0, 3.0)), 1.5, 0.5)
    # means of the last two: (2 + 4) / 2 = 3 and (1 + 2) / 2 = 1.5; w_eval' * 3 = w_dir' * 1.5, sum 1.2: .4, .8
    near(normed(Balance(0.2, 1.0, window=2), (90.0, 0.1), (2.0, 1.0), (4.0, 2.0)), 0.4, 0.8)


def test_balance_is_bounded_around_the_ratio_it_starts_from():
    # start 1 : 3; wanted 1000 : 1, at most 2 * 1/3; wanted 1 : 1000, at least 1/3 / 2
    near(normed(Balance(1.0, 3.0, balance_bound=2.0), (0.001, 1.0)), 4 * (2 / 3) / (5 / 3), 4 * 3 / 5)
    near(normed(Balance(1.0, 3.0, balance_bound=2.0), (1.0, 0.001)), 4 * 1 / 7, 4 * 6 / 7)
    near(normed(Balance(1.0, 3.0, balance_bound=1.0), (1.0, 50.0)), 1.0, 3.0)


@pytest.mark.parametrize(
    "norms", [(None, None), (1.0, None), (None, 1.0), (0.0, 2.0), (2.0, 0.0), (NAN, 1.0)]
)
def test_balance_is_the_start_while_a_norm_is_unknown_or_zero(norms):
    assert normed(Balance(0.3, 1.2), norms) == Weights(0.3, 1.2)


@pytest.mark.parametrize(("w_eval", "w_dir"), [(0.0, 1.0), (1.0, 0.0), (0.0, 0.0)])
def test_balance_reduces_to_constant_where_a_weight_starts_at_zero(w_eval, w_dir):
    assert normed(Balance(w_eval, w_dir), (1.0, 3.0)) == Constant(w_eval, w_dir).weights(Progress(1))


def test_balance_remembers_norms_over_updates_without_a_term():
    schedule = Balance(1.0, 1.0)
    near(normed(schedule, (1.0, None), (None, 3.0), (None, None)), 1.5, 0.5)


@given(
    st.lists(st.tuples(st.floats(0.01, 100), st.floats(0.01, 100)), min_size=1, max_size=6),
    st.floats(0.01, 5),
    st.floats(0.01, 5),
)
def test_balance_keeps_the_sum_and_equalises_unless_bounded(norms, w_eval, w_dir):
    weights = normed(Balance(w_eval, w_dir, balance_bound=1e9), *norms)
    n_eval, n_dir = (sum(column) / len(norms) for column in zip(*norms, strict=True))
    assert weights.eval + weights.dir == pytest.approx(w_eval + w_dir)
    assert weights.eval * n_eval == pytest.approx(weights.dir * n_dir)
    bounded = normed(Balance(w_eval, w_dir, balance_bound=3.0), *norms)
    first = w_eval / w_dir
    assert first / 3.001 <= bounded.eval / bounded.dir <= first * 3.001


@every
@settings(max_examples=30)
@given(history=histories, cut=st.integers(0, 12), again=st.integers(1, 3))
def test_a_resumed_and_repeatedly_asked_schedule_equals_an_uninterrupted_one(make, history, cut, again):
    whole, broken = make(), make()
    for step, reading in enumerate(history):
        if step == cut:
            state = json.loads(json.dumps(broken.state_dict(), allow_nan=False))
            broken = make()
            broken.load_state_dict(state)
        expected = whole.weights(progress(step, reading))
        answers = [broken.weights(progress(step, reading)) for _ in range(again)]
        assert answers == [expected] * again
        assert math.isfinite(expected.eval)
        assert math.isfinite(expected.dir)
        assert min(expected.eval, expected.dir) >= 0


@pytest.mark.parametrize("name", ["performance", "density", "balance"])
def test_within_a_step_or_behind_it_nothing_moves(name):
    schedule = SCHEDULES[name]()
    first = schedule.weights(Progress(3, 1.0, 1.0, 1.0, 2.0))
    state = schedule.state_dict()
    assert schedule.weights(Progress(3, -1.0, 0.0, 50.0, 1.0)) == first
    assert schedule.weights(Progress(2, -1.0, 0.0, 50.0, 1.0)) == first
    assert schedule.state_dict() == state


def test_a_state_is_a_copy_and_follows_the_settings_it_is_loaded_into():
    schedule = Density(1.0, 1.0, density_alpha=1.0, window=3)
    for step, share in enumerate([0.0, 0.0, 1.0], 1):
        schedule.weights(Progress(step, directive_share=share))
    state = schedule.state_dict()
    state["shares"].append(9.0)
    near(schedule.weights(Progress(3)), 1.0, 1 + 1 / 3)
    shorter = Density(1.0, 1.0, density_alpha=1.0, window=1)
    shorter.load_state_dict(schedule.state_dict())
    near(shorter.weights(Progress(3)), 1.0, 2.0)  # the last share alone
    lower = Performance(1.0, 0.2, floor=0.1)
    lower.load_state_dict(Performance(1.0, 2.0, floor=1.0).state_dict())
    near(lower.weights(Progress(1)), 1.0, 0.2)  # 2 lies above this start


def test_a_schedule_without_state_refuses_one():
    with pytest.raises(ValueError, match="Linear has no state, but was given"):
        Linear().load_state_dict({"rewards": [1.0]})
    Linear().load_state_dict({})


def test_every_setting_of_a_schedule_is_one_of_the_configuration():
    known = WeightsConfig.model_fields
    for make in SCHEDULES.values():
        fields = type(make()).__dataclass_fields__.values()
        assert all(field.name in known for field in fields if field.init)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Constant(-0.1, 1.0), "Weights must be finite and not negative"),
        (lambda: Constant(NAN, 1.0), "finite"),
        (lambda: Linear(w_dir=INF), "finite"),
        (lambda: Linear(w_eval_end=-1.0), "negative"),
        (lambda: Linear(steps=0), "steps must be at least 1, not 0"),
        (lambda: Cosine(steps=-3), "steps must be at least 1, not -3"),
        (lambda: Complementary(w_dir_end=-0.5), "negative"),
        (lambda: Complementary(steps=0), "steps"),
        (lambda: Performance(decay=1.0), r"decay must lie in \(0, 1\), not 1.0"),
        (lambda: Performance(decay=0.0), "decay"),
        (lambda: Performance(floor=-0.1), "negative"),
        (lambda: Performance(window=0), "window must be at least 1, not 0"),
        (lambda: Performance(threshold=NAN), "threshold must be finite"),
        (lambda: Density(window=0), "window"),
        (lambda: Density(density_alpha=INF), "density_alpha must be finite"),
        (lambda: Balance(balance_bound=0.5), "balance_bound must be finite and at least 1, not 0.5"),
        (lambda: Balance(window=0), "window"),
        (lambda: Balance(w_dir=-1.0), "negative"),
    ],
)
def test_nonsense_is_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()
