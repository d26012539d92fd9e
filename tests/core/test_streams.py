"""Plain tensors into streams: what is absent, what is refused, and how a distribution is read."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch

from stereorl.core import (
    DenseVocabulary,
    Needs,
    Objective,
    Support,
    make_streams,
)

NAN = float("nan")


def test_a_row_of_nan_lacks_its_signal():
    new = torch.full((3, 2), -1.0)
    mask = torch.tensor([[True, True], [True, False], [True, True]])
    teacher = torch.tensor([[-1.0, -2.0], [-1.0, NAN], [NAN, NAN]])
    streams = make_streams(new, mask, reward_B=torch.tensor([1.0, NAN, -1.0]), logp_teacher_BT=teacher)
    assert streams.has_reward_B.tolist() == [True, False, True]
    assert streams.has_teacher_B.tolist() == [True, True, False]
    assert torch.equal(streams.logp_ref_BT, new)
    # weights: means over rows, then over their tokens; of each signal over the rows that carry it
    torch.testing.assert_close(streams.weight_BT, torch.tensor([[1 / 6, 1 / 6], [1 / 3, 0], [1 / 6, 1 / 6]]))
    torch.testing.assert_close(streams.weight_eval_BT, torch.tensor([[0.25, 0.25], [0, 0], [0.25, 0.25]]))
    torch.testing.assert_close(streams.weight_dir_BT, torch.tensor([[0.25, 0.25], [0.5, 0], [0, 0]]))


def test_an_advantage_may_replace_the_reward():
    streams = make_streams(
        torch.zeros(1, 2) - 1,
        torch.ones(1, 2, dtype=torch.bool),
        reward_B=torch.tensor([1.0]),
        adv_B=torch.tensor([0.25]),
    )
    assert streams.reward_B.tolist() == [1.0]
    assert streams.adv_eval_BT.tolist() == [[0.25, 0.25]]


def test_shapes_and_masks_are_refused_by_name():
    with pytest.raises(ValueError, match="mask_BT"):
        make_streams(torch.zeros(1, 2), torch.ones(1, 2))
    with pytest.raises(ValueError, match="reward_B"):
        make_streams(torch.zeros(1, 2), torch.ones(1, 2, dtype=torch.bool), reward_B=torch.zeros(2))
    three = torch.zeros(1, 2, 3)
    with pytest.raises(ValueError, match="logp_old_BTK"):
        Support(
            logp_new_BTK=three, logp_old_BTK=three[:, :, :2], logp_teacher_BTK=three, mask_BTK=three.bool()
        )
    with pytest.raises(ValueError, match=r"\[B, T, K\]"):
        Support(logp_new_BTK=three[0], logp_old_BTK=three, logp_teacher_BTK=three, mask_BTK=three.bool())
    with pytest.raises(ValueError, match="boolean"):
        Support(logp_new_BTK=three, logp_old_BTK=three, logp_teacher_BTK=three, mask_BTK=three)


def test_a_distribution_without_the_teachers_rows_is_refused():
    """It would be read as no teacher at all: a silent zero."""
    new, mask = torch.full((1, 1), -1.0), torch.ones(1, 1, dtype=torch.bool)
    one = torch.zeros(1, 1, 1)
    support = Support(logp_new_BTK=one, logp_old_BTK=one, logp_teacher_BTK=one, mask_BTK=mask[..., None])
    for given in ({"support": support}, {"vocabulary": DenseVocabulary(one, one, mask)}):
        with pytest.raises(ValueError, match="Give logp_teacher_BT as well"):
            make_streams(new, mask, **given)
        assert make_streams(new, mask, logp_teacher_BT=new, **given).has_teacher_B.all()


def test_a_vocabulary_is_read_where_it_has_a_teacher():
    logp = torch.tensor([[[0.5, 0.5], [0.9, 0.1]]]).log()
    teacher = torch.tensor([[[0.25, 0.75], [NAN, NAN]]]).log()
    vocabulary = DenseVocabulary(logp, teacher, torch.tensor([[True, False]]))
    got = vocabulary.map(lambda p, q: (p.exp() * (p - q)).sum(1))
    assert got[0].tolist() == pytest.approx([0.5 * math.log(2) + 0.5 * math.log(2 / 3), 0.0], abs=1e-6)


def test_an_objective_is_the_sum_of_its_terms():
    terms = {name: torch.tensor(value) for name, value in (("eval", 1.5), ("dir", -0.25), ("kl", 0.125))}
    assert float(Objective(terms=terms, tokens={}).loss) == 1.375
    assert float(Objective(terms={"kl": torch.tensor(2.0)}, tokens={}).loss) == 2.0


def test_needs():
    assert not Needs().distribution
    assert Needs(top_k=3).distribution
    assert Needs(vocabulary=True).distribution


def test_streams_refuse_odd_shapes_and_float_masks():
    good = make_streams(torch.zeros(2, 3) - 1, torch.ones(2, 3, dtype=torch.bool))
    with pytest.raises(ValueError, match="logp_ref_BT"):
        dataclasses.replace(good, logp_ref_BT=torch.zeros(2, 2))
    with pytest.raises(ValueError, match="has_reward_B"):
        dataclasses.replace(good, has_reward_B=torch.ones(3, dtype=torch.bool))
    with pytest.raises(ValueError, match="boolean"):
        dataclasses.replace(good, mask_BT=torch.ones(2, 3))
