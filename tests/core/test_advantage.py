"""Golden numbers by hand, and identities, of the advantages."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from stereorl.core import advantage_sum, directive_gap, evaluative_advantage

NAN = float("nan")


def close(actual: Tensor, expected: list) -> None:
    torch.testing.assert_close(actual, torch.tensor(expected, dtype=actual.dtype), rtol=0, atol=1e-6)


def test_no_baseline_is_the_reward():
    adv, mean = evaluative_advantage(
        torch.tensor([1.0, -1.0, NAN]), torch.tensor([True, True, False]), baseline="none", running_mean=0.25
    )
    close(adv, [1.0, -1.0, 0.0])
    assert mean == pytest.approx(0.9 * 0.25 + 0.1 * 0.0, abs=1e-6)


def test_batch_baseline_subtracts_the_mean_of_rewarded_rows():
    # rewards 1, -1, -1: mean -1/3; the unrewarded row counts nowhere
    adv, _ = evaluative_advantage(
        torch.tensor([1.0, NAN, -1.0, -1.0]), torch.tensor([True, False, True, True]), baseline="batch"
    )
    close(adv, [4 / 3, 0.0, -2 / 3, -2 / 3])


def test_running_baseline_uses_earlier_batches_only():
    has = torch.tensor([True, True])
    adv, mean = evaluative_advantage(torch.tensor([-1.0, -1.0]), has, baseline="running", decay=0.9)
    close(adv, [-1.0, -1.0])  # the first batch of only -1 is a signal
    assert mean == pytest.approx(-0.1, abs=1e-6)  # 0.9 * 0 + 0.1 * -1
    adv, mean = evaluative_advantage(torch.tensor([1.0, 0.0]), has, running_mean=mean, decay=0.9)
    close(adv, [1.1, 0.1])
    assert mean == pytest.approx(0.9 * -0.1 + 0.1 * 0.5, abs=1e-6)


def test_a_batch_without_rewards_leaves_the_running_mean():
    adv, mean = evaluative_advantage(torch.tensor([NAN, NAN]), torch.tensor([False, False]), running_mean=0.3)
    close(adv, [0.0, 0.0])
    assert mean == 0.3


@pytest.mark.parametrize("baseline", ["batch", "none"])
def test_a_batch_without_rewards_is_no_mean_to_subtract(baseline):
    adv, mean = evaluative_advantage(
        torch.tensor([NAN]), torch.tensor([False]), baseline=baseline, running_mean=0.3
    )
    assert (adv.tolist(), mean) == ([0.0], 0.3)


def test_decay_0_is_the_last_batchs_mean():
    _, mean = evaluative_advantage(
        torch.tensor([1.0, 0.0]), torch.tensor([True, True]), running_mean=9.0, decay=0.0
    )
    assert mean == 0.5


def test_running_reduces_to_none_at_mean_zero():
    reward, has = torch.tensor([1.0, -1.0, 0.0]), torch.tensor([True, True, True])
    running, _ = evaluative_advantage(reward, has, baseline="running", running_mean=0.0)
    none, _ = evaluative_advantage(reward, has, baseline="none")
    assert torch.equal(running, none)


def test_gap_by_hand():
    # p_teacher = .5, .1, .2; p_student = .25, .4, .2: ln 2, -ln 4, 0
    teacher = torch.tensor([[0.5, 0.1, 0.2, 1.0]]).log()
    student = torch.tensor([[0.25, 0.4, 0.2, 1.0]]).log()
    teacher[0, 3] = NAN
    mask = torch.tensor([[True, True, True, False]])
    close(directive_gap(teacher, student, mask), [[math.log(2), -math.log(4), 0.0, 0.0]])
    close(directive_gap(teacher, student, mask, clip=1.0), [[math.log(2), -1.0, 0.0, 0.0]])


def test_gap_is_detached_and_zero_for_an_identical_teacher():
    student = torch.tensor([[-1.5, -0.2]], requires_grad=True)
    gap = directive_gap(student, student, torch.ones(1, 2, dtype=torch.bool))
    assert not gap.requires_grad
    assert torch.equal(gap, torch.zeros(1, 2))


def test_sum_by_hand_with_a_mask_per_signal():
    mask = torch.tensor([[True, True, False], [True, True, True], [True, False, False]])
    total = advantage_sum(
        torch.tensor([[1.0] * 3, [-1.0] * 3, [NAN] * 3]),
        torch.tensor([[0.5, -0.5, NAN], [NAN] * 3, [0.2, 0.0, 0.0]]),
        has_reward_B=torch.tensor([True, True, False]),
        has_teacher_B=torch.tensor([True, False, True]),
        mask_BT=mask,
        w_eval=2.0,
        w_dir=3.0,
    )
    close(total, [[2 + 1.5, 2 - 1.5, 0.0], [-2.0, -2.0, -2.0], [0.6, 0.0, 0.0]])


def test_sum_weighs_both_by_1_unless_told():
    one, yes = torch.ones(1, 1), torch.tensor([True])
    total = advantage_sum(one, 2 * one, has_reward_B=yes, has_teacher_B=yes, mask_BT=yes[:, None])
    close(total, [[3.0]])


@pytest.mark.parametrize(("w_eval", "w_dir"), [(1.0, 0.0), (0.0, 1.0)])
def test_sum_reduces_to_one_signal(w_eval, w_dir):
    adv, gap = torch.randn(2, 3), torch.randn(2, 3)
    yes, mask = torch.tensor([True, True]), torch.ones(2, 3, dtype=torch.bool)
    total = advantage_sum(
        adv, gap, has_reward_B=yes, has_teacher_B=yes, mask_BT=mask, w_eval=w_eval, w_dir=w_dir
    )
    assert torch.equal(total, adv if w_eval else gap)


def test_bad_input_is_refused_by_name():
    row, mask = torch.zeros(2), torch.ones(2, dtype=torch.bool)
    with pytest.raises(ValueError, match="has_reward_B"):
        evaluative_advantage(row, mask[:1])
    with pytest.raises(ValueError, match="boolean"):
        evaluative_advantage(row, row)
    with pytest.raises(ValueError, match="decay"):
        evaluative_advantage(row, mask, decay=1.0)
    with pytest.raises(ValueError, match="baseline"):
        evaluative_advantage(row, mask, baseline="median")
    with pytest.raises(ValueError, match="logp_student_BT"):
        directive_gap(torch.zeros(2, 3), torch.zeros(2, 2), torch.ones(2, 3, dtype=torch.bool))
    with pytest.raises(ValueError, match="clip"):
        directive_gap(row[None], row[None], mask[None], clip=0.0)
    with pytest.raises(ValueError, match="has_teacher_B"):
        advantage_sum(row[None], row[None], has_reward_B=mask[:1], has_teacher_B=mask, mask_BT=mask[None])
