"""Generalised advantages: closed forms, and what ends a trace, what bootstraps and what does not."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from stereorl.core import gae

NAN = float("nan")


def run(reward, value, next_value, terminated=(), truncated=(), **settings):
    """`gae` of one environment; the flags are given by the steps where they stand."""
    steps = range(len(reward))
    columns = [torch.tensor(x, dtype=torch.float64)[:, None] for x in (reward, value, next_value)]
    flags = [torch.tensor([t in at for t in steps])[:, None] for at in (terminated, truncated)]
    advantage, returns = gae(*columns, *flags, **settings)
    return advantage[:, 0].tolist(), returns[:, 0].tolist()


def near(actual, expected):
    assert actual == pytest.approx(expected, abs=1e-6)


def test_by_hand_to_the_end_of_an_episode():
    """gamma .9, lambda .5. deltas: 1 + .9 * 2 - 1 = 1.8;  2 + .9 * 4 - 2 = 3.6;  3 - 4 = -1 (terminated).

    A2 = -1;  A1 = 3.6 + .45 * -1 = 3.15;  A0 = 1.8 + .45 * 3.15 = 3.2175.
    """
    advantage, returns = run([1, 2, 3], [1, 2, 4], [2, 4, 77], [2], gamma=0.9, lam=0.5)
    near(advantage, [3.2175, 3.15, -1.0])
    near(returns, [4.2175, 5.15, 3.0])


def test_a_cut_rollout_bootstraps_from_the_next_value():
    # as above, but the last delta is 3 + .9 * 10 - 4 = 8: A1 = 3.6 + .45 * 8 = 7.2; A0 = 1.8 + .45 * 7.2 = 5.04
    advantage, _ = run([1, 2, 3], [1, 2, 4], [2, 4, 10], gamma=0.9, lam=0.5)
    near(advantage, [5.04, 7.2, 8.0])


def test_a_truncation_bootstraps_from_the_final_observation_and_cuts_the_trace():
    """gamma .9, lambda .5; truncated after step 1, whose final observation is worth 10; then another episode.

    deltas: 1 + .9 * 2 - 1 = 1.8;  2 + .9 * 10 - 2 = 9;  3 + .9 * 0 - 5 = -2. A1 = 9, whatever comes after.
    """
    advantage, _ = run([1, 2, 3], [1, 2, 5], [2, 10, 0], truncated=[1], gamma=0.9, lam=0.5)
    near(advantage, [1.8 + 0.45 * 9, 9.0, -2.0])


def test_a_termination_bootstraps_nothing_and_cuts_the_trace():
    # deltas: 1.8; 2 - 2 = 0; -2
    advantage, _ = run([1, 2, 3], [1, 2, 5], [2, 10, 0], [1], gamma=0.9, lam=0.5)
    near(advantage, [1.8, 0.0, -2.0])


def test_both_flags_at_once_are_a_termination():
    given_values = ([1, 2, 3], [1, 2, 5], [2, 10, 0])
    assert run(*given_values, [1], [1]) == run(*given_values, [1])
    assert run(*given_values, [1], [1]) != run(*given_values, [], [1])


def test_what_follows_an_end_is_not_read():
    advantage, returns = run([1, NAN], [0.5, 0], [NAN, 0], [0], gamma=0.9, lam=0.9)
    near(advantage[0], 0.5)
    near(returns[0], 1.0)
    advantage, _ = run([1, NAN], [0.5, 0], [2, 0], [], [0], gamma=0.9, lam=0.9)
    near(advantage[0], 1 + 0.9 * 2 - 0.5)


numbers = st.lists(st.floats(-5, 5), min_size=6, max_size=6)
steps = st.sets(st.integers(0, 5))


@given(numbers, numbers, numbers, steps, steps, st.floats(0, 1))
def test_lambda_0_is_the_td_error(reward, value, after, terminated, truncated, gamma):
    advantage, returns = run(reward, value, after, terminated, truncated, gamma=gamma, lam=0.0)
    target = [
        r + gamma * v * (t not in terminated) for t, (r, v) in enumerate(zip(reward, after, strict=True))
    ]
    near(advantage, [g - v for g, v in zip(target, value, strict=True)])
    near(returns, target)


@given(numbers, numbers, st.floats(-5, 5), steps, steps, st.floats(0, 1))
def test_lambda_1_is_the_discounted_return_minus_the_value(reward, value, last, terminated, truncated, gamma):
    """Where an episode goes on, the next value is the next step's value; at its end, the final observation's."""
    ends = terminated | truncated
    after = [last + t if t in ends or t == 5 else value[t + 1] for t in range(6)]
    expected, later = [0.0] * 6, 0.0
    for t in reversed(range(6)):
        if t in terminated:
            later = 0.0
        elif t in truncated or t == 5:
            later = after[t]
        later = reward[t] + gamma * later
        expected[t] = later
    advantage, returns = run(reward, value, after, terminated, truncated, gamma=gamma, lam=1.0)
    near(returns, expected)
    near(advantage, [g - v for g, v in zip(expected, value, strict=True)])


@pytest.mark.parametrize("lam", [0.0, 0.5, 0.95, 1.0])
@pytest.mark.parametrize("truncated", [[], [3, 7], list(range(12))])
def test_constant_reward_for_ever_is_worth_r_over_1_minus_gamma(lam, truncated):
    """With V = 2 / (1 - .75) = 8 every delta is 2 + .75 * 8 - 8 = 0; time limits do not end what goes on."""
    advantage, returns = run([2] * 12, [8] * 12, [8] * 12, [], truncated, gamma=0.75, lam=lam)
    near(advantage, [0.0] * 12)
    near(returns, [8.0] * 12)


def test_with_no_value_the_return_is_the_geometric_sum():
    # lambda 1, V = 0, ends after n steps: 1 + g + ... + g^(n-1) = (1 - g^n) / (1 - g)
    _, returns = run([1] * 4, [0] * 4, [0] * 4, [3], gamma=0.5, lam=1.0)
    near(returns, [(1 - 0.5**n) / 0.5 for n in (4, 3, 2, 1)])


def test_environments_do_not_mix():
    shape = (5, 3)
    generator = torch.Generator().manual_seed(0)
    reward, value, after = (torch.randn(shape, generator=generator) for _ in range(3))
    terminated, truncated = (torch.rand(shape, generator=generator) < 0.3 for _ in range(2))
    together = gae(reward, value, after, terminated, truncated)
    for n in range(3):
        column = slice(n, n + 1)
        alone = gae(*(x[:, column] for x in (reward, value, after, terminated, truncated)))
        assert torch.equal(together[0][:, column], alone[0])
        assert torch.equal(together[1][:, column], alone[1])


def test_targets_carry_no_gradient_and_a_rollout_of_no_steps_is_empty():
    value = torch.zeros(2, 1, requires_grad=True)
    none = torch.zeros(2, 1, dtype=torch.bool)
    advantage, returns = gae(torch.ones(2, 1), value, value, none, none)
    assert not advantage.requires_grad
    assert not returns.requires_grad
    empty = gae(*[torch.zeros(0, 2)] * 3, *[torch.zeros(0, 2, dtype=torch.bool)] * 2)
    assert [tuple(x.shape) for x in empty] == [(0, 2), (0, 2)]


def test_senseless_input_is_refused():
    x, none = torch.zeros(2, 1), torch.zeros(2, 1, dtype=torch.bool)
    with pytest.raises(ValueError, match=r"value_TN must have shape \[T, N\], here \[2, 1\], not \[1, 2\]"):
        gae(x, x.T, x, none, none)
    with pytest.raises(ValueError, match="reward_TN must have shape"):
        gae(x[:, 0], x, x, none, none)
    with pytest.raises(ValueError, match="truncated_TN must be boolean, not "):
        gae(x, x, x, none, x)
    for settings in ({"gamma": 1.1}, {"lam": -0.1}, {"gamma": NAN}):
        with pytest.raises(ValueError, match=r"gamma and lam must lie in \[0, 1\]"):
            gae(x, x, x, none, none, **settings)
