"""Plain tensors into streams; and the small functions beside the fusions: anchor, norms, KL in expectation."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

from stereorl import core
from stereorl.core import (
    DenseVocabulary,
    Needs,
    Support,
    cosine,
    kl_estimate,
    make_streams,
    norm,
    parameter_anchor,
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


def test_needs():
    assert not Needs().distribution
    assert Needs(top_k=3).distribution
    assert Needs(vocabulary=True).distribution


def test_the_anchor_by_hand():
    """(1 - 0)^2 + (2 - 4)^2 + (3 - 3)^2 = 5; gradient 2 (theta - theta_0)."""
    theta = [torch.tensor([1.0, 2.0], requires_grad=True), torch.tensor([[3.0]], requires_grad=True)]
    start = [torch.tensor([0.0, 4.0]), torch.tensor([[3.0]])]
    value = parameter_anchor(theta, start)
    assert float(value.detach()) == 5.0
    first, second = torch.autograd.grad(value, theta)
    assert first.tolist() == [2.0, -4.0]
    assert second.tolist() == [[0.0]]
    with pytest.raises(ValueError, match="one of each"):
        parameter_anchor(theta, start[:1])
    with pytest.raises(ValueError, match="different shapes"):
        parameter_anchor(theta, start[::-1])
    double = [t.detach().double().requires_grad_() for t in theta]
    assert torch.autograd.gradcheck(lambda *p: parameter_anchor(p, [s.double() for s in start]), double)


def test_norm_and_cosine_by_hand():
    """|(3, 4)| = 5; (3, 4) . (4, -3) = 0; (1, 0) . (-1, 1) / sqrt 2."""
    a = torch.tensor([3.0, 4.0])
    assert norm(a) == pytest.approx(5.0, abs=1e-6)
    assert cosine(a, torch.tensor([4.0, -3.0])) == pytest.approx(0.0, abs=1e-6)
    assert cosine(torch.tensor([1.0, 0.0]), torch.tensor([-1.0, 1.0])) == pytest.approx(-(0.5**0.5), abs=1e-6)
    assert cosine(a, torch.zeros(2)) is None
    with pytest.raises(ValueError, match="flat"):
        cosine(a, torch.zeros(3))


def test_k1_k2_k3_agree_in_expectation_on_a_known_pair():
    """p = (.5, .3, .2), r = (.4, .4, .2): KL = .5 ln 1.25 + .3 ln .75. Under p, k1 and k3 have it as their mean
    exactly; k2 to third order: halving the distance shrinks its error about eightfold.
    """
    p = torch.tensor([[0.5, 0.3, 0.2]], dtype=torch.float64)
    r = torch.tensor([[0.4, 0.4, 0.2]], dtype=torch.float64)
    kl = 0.5 * math.log(1.25) + 0.3 * math.log(0.75)

    def mean(kind, reference):
        return float((p * kl_estimate(p.log(), reference.log(), kind=kind)).sum())

    assert mean("k1", r) == pytest.approx(kl, abs=1e-9)
    assert mean("k3", r) == pytest.approx(kl, abs=1e-9)
    errors = []
    for share in (1.0, 0.5):
        mixed = (1 - share) * p + share * r
        errors.append(abs(mean("k2", mixed) - mean("k1", mixed)))
    assert errors[0] < 0.1 * kl
    assert errors[1] < errors[0] / 4


def test_every_public_name_of_core_is_tested_somewhere_here():
    text = "\n".join(path.read_text(encoding="utf-8") for path in Path(__file__).parent.glob("test_*.py"))
    protocols_and_types = {"Aggregation", "Baseline", "ClipMode", "KLKind", "SupportKind"}
    protocols_and_types |= {"Combiner", "Estimator", "Fusion", "Scale", "Schedule", "Vocabulary"}
    containers = {"Directive", "Objective", "Clipped"}
    for name in set(core.__all__) - protocols_and_types - containers:
        assert name in text, f"no test of {name} in tests/core"
