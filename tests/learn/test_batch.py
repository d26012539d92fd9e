from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from stereorl.learn.batch import collate, micro_batches
from tests.learn.tiny import make_sample, mixed


def test_collate_pads_on_the_right_and_masks_what_is_absent():
    samples = mixed()
    batch = collate(samples)
    assert batch.mask_BT.sum(dim=1).tolist() == [9, 3, 6, 1, 11]
    assert batch.has_reward_B.tolist() == [True, True, False, True, True]
    assert batch.has_teacher_B.tolist() == [True, False, True, True, False]
    assert torch.isnan(batch.reward_B).tolist() == [False, False, True, False, False]
    assert torch.isnan(batch.logp_teacher_BT[1]).all()
    assert batch.temperature_B.tolist() == pytest.approx([0.7, 1.0, 0.7, 0.7, 0.7])
    np.testing.assert_array_equal(batch.logp_behaviour_BT[2, :6].numpy(), samples[2].turn.log_probs)
    assert batch.responses[0] is samples[0].turn.response_ids  # the sampled ids, untouched


def test_a_greedy_turn_is_scored_at_temperature_one():
    assert collate([make_sample(0, reward=1.0, temperature=0.0)]).temperature_B.tolist() == [1.0]


def test_collate_refuses_nothing():
    with pytest.raises(ValueError, match="at least one"):
        collate([])


@given(st.lists(st.integers(1, 50), min_size=1, max_size=30), st.integers(1, 120))
def test_micro_batches_cover_every_row_once_within_the_budget(lengths, budget):
    groups = micro_batches(lengths, budget)
    assert sorted(row for rows in groups for row in rows) == list(range(len(lengths)))
    for rows in groups:
        longest = max(lengths[row] for row in rows)
        assert len(rows) == 1 or len(rows) * longest <= budget
        assert all(4 * lengths[row] >= 3 * longest for row in rows)


def test_rows_of_like_length_share_a_pass():
    assert micro_batches([10, 9, 8, 7, 3, 3], 30) == [[0, 1, 2], [3], [4, 5]]
