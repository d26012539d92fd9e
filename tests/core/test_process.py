"""Outcome + step votes, and rewards standardised within groups, by hand."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from stereorl.core import group_advantage, process_reward

NAN = float("nan")


def close(actual, expected):
    torch.testing.assert_close(actual, torch.tensor(expected, dtype=actual.dtype), rtol=0, atol=1e-6)


def whole(*values):
    return torch.tensor(values, dtype=torch.long)


def test_process_reward_by_hand():
    """A mean, not a majority: +1 and two of three up: 1 + 1/3; -1 and one valid vote down: -2; none valid: 1."""
    outcome = torch.tensor([1.0, -1.0, 1.0, -1.0])
    votes = torch.tensor([[1.0, 1.0, -1.0], [NAN, -1.0, NAN], [NAN, NAN, NAN], [1.0, -1.0, NAN]])
    close(process_reward(outcome, votes), [4 / 3, -2.0, 1.0, -1.0])


def test_process_reward_reduces_to_the_outcome_without_votes():
    outcome = torch.tensor([1.0, -1.0])
    assert torch.equal(process_reward(outcome, torch.zeros(2, 0)), outcome)


def test_process_reward_takes_whole_numbers():
    close(process_reward(whole(1, -1), torch.tensor([[1, 1], [1, -1]])), [2.0, -1.0])


@pytest.mark.parametrize("vote", [0.0, 0.5, float("inf")])
def test_process_reward_refuses_what_is_no_vote(vote):
    with pytest.raises(ValueError, match=r"vote_NM must hold \+1, -1, or NaN"):
        process_reward(torch.ones(1), torch.tensor([[1.0, vote]]))


def test_process_reward_refuses_other_shapes():
    with pytest.raises(ValueError, match=r"outcome_N has shape \[2\] and vote_NM \[3, 1\]"):
        process_reward(torch.ones(2), torch.ones(3, 1))
    with pytest.raises(ValueError, match=r"give \[N\] and \[N, M\]"):
        process_reward(torch.ones(2), torch.ones(2))


def test_groups_by_hand():
    """Group 5: 1, 3, mean 2, population std 1: -1, +1. Group 2: 2 alone, kept raw. Group 9: 4, 4: says nothing."""
    advantage, kept = group_advantage(torch.tensor([1.0, 4.0, 2.0, 3.0, 4.0]), whole(5, 9, 2, 5, 9), eps=0.0)
    close(advantage, [-1.0, 0.0, 2.0, 1.0, 0.0])
    assert kept.tolist() == [True, False, True, True, False]


def test_eps_is_added_to_the_deviation():
    # 0, 0, 3: mean 1, std sqrt((1 + 1 + 4) / 3) = sqrt 2
    advantage, _ = group_advantage(torch.tensor([0.0, 0.0, 3.0]), whole(0, 0, 0), eps=0.5)
    close(advantage, [-1 / (math.sqrt(2) + 0.5)] * 2 + [2 / (math.sqrt(2) + 0.5)])


def test_steps_are_compared_with_the_same_step_of_the_group():
    """Two trajectories of a group, of 3 and 2 steps: (0, 4), (7, 7), and a third step alone; another group's step 0."""
    reward = torch.tensor([0.0, 7.0, 9.0, 4.0, 7.0, -1.0])
    group, step = whole(1, 1, 1, 1, 1, 2), whole(0, 1, 2, 0, 1, 0)
    advantage, kept = group_advantage(reward, group, step_N=step, eps=0.0)
    close(advantage, [-1.0, 0.0, 9.0, 1.0, 0.0, -1.0])  # 0 and 4: mean 2, std 2
    assert kept.tolist() == [True, False, True, True, False, True]


def test_one_step_for_all_reduces_to_groups():
    reward, group = torch.tensor([1.0, -1.0, 0.5, 2.0, 0.0]), whole(0, 0, 1, 1, 1)
    by_group = group_advantage(reward, group)
    by_step = group_advantage(reward, group, step_N=torch.full((5,), 3))
    assert torch.equal(by_group[0], by_step[0])
    assert torch.equal(by_group[1], by_step[1])


@pytest.mark.parametrize("size", [0.0, 1e-9, 0.1, 100.1, 1e7])
def test_constant_groups_are_found_at_any_size(size):
    advantage, kept = group_advantage(torch.full((7,), size), torch.zeros(7, dtype=torch.long))
    assert advantage.tolist() == [0.0] * 7
    assert not kept.any()


def test_rewards_equal_up_to_rounding_are_constant_and_small_differences_are_not():
    large = torch.tensor([100.1, 100.1])
    large[1] = large[1].nextafter(torch.tensor(200.0))  # 7.6e-6 away
    assert not group_advantage(large, whole(0, 0))[1].any()
    for low, high in ((1.0, 1.001), (1e-13, 3e-13)):
        pair = torch.tensor([low, high], dtype=torch.float64)
        advantage, kept = group_advantage(pair, whole(0, 0), eps=0.0)
        assert kept.all()
        close(advantage, [-1.0, 1.0])


rewards = st.lists(
    st.tuples(st.integers(-4, 4), st.integers(0, 3), st.integers(0, 1)), min_size=1, max_size=20
)


@given(rewards)
def test_a_standardised_group_has_mean_0_and_std_1(rows):
    reward = torch.tensor([float(r) for r, _, _ in rows], dtype=torch.float64)
    group, step = whole(*(g for _, g, _ in rows)), whole(*(s for _, _, s in rows))
    advantage, kept = group_advantage(reward, group, step_N=step, eps=0.0)
    for key in {(g, s) for _, g, s in rows}:
        chosen = (group == key[0]) & (step == key[1])
        mine = advantage[chosen]
        if len(mine) == 1:
            assert torch.equal(mine, reward[chosen])
            assert kept[chosen].all()
        elif len(reward[chosen].unique()) == 1:
            assert mine.tolist() == [0.0] * len(mine)
            assert not kept[chosen].any()
        else:
            close(torch.stack([mine.mean(), mine.std(correction=0)]), [0.0, 1.0])
            assert kept[chosen].all()


@given(st.permutations(range(6)))
def test_the_order_of_rows_does_not_matter(order):
    reward, group = torch.tensor([1.0, 0.0, 2.0, 5.0, 5.0, 3.0]), whole(0, 0, 0, 1, 1, 2)
    advantage, kept = group_advantage(reward, group)
    mixed, mixed_kept = group_advantage(reward[order], group[order])
    close(mixed, advantage[order].tolist())
    assert torch.equal(mixed_kept, kept[order])


def test_no_rows_and_whole_numbers():
    advantage, kept = group_advantage(torch.zeros(0), whole())
    assert (advantage.shape, kept.shape, kept.dtype) == ((0,), (0,), torch.bool)
    close(group_advantage(whole(1, -1), whole(0, 0), eps=0.0)[0], [1.0, -1.0])


def test_senseless_input_is_refused():
    reward, group = torch.zeros(2), whole(0, 0)
    with pytest.raises(ValueError, match=r"reward_N must have shape \[N\], not \[1, 2\]"):
        group_advantage(reward[None], group[None])
    with pytest.raises(ValueError, match=r"group_N has shape \[1\], but reward_N has \[2\]"):
        group_advantage(reward, group[:1])
    with pytest.raises(ValueError, match=r"step_N has shape \[3\]"):
        group_advantage(reward, group, step_N=whole(0, 0, 0))
    with pytest.raises(ValueError, match="group_N must hold whole numbers"):
        group_advantage(reward, group.float())
    with pytest.raises(ValueError, match="reward_N must be finite"):
        group_advantage(torch.tensor([NAN, 1.0]), group)
    with pytest.raises(ValueError, match="eps must not be negative"):
        group_advantage(reward, group, eps=-1.0)
