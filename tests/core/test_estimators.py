"""Estimators of the directive signal: by hand, and what each reduces to."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch

from stereorl.core import (
    DenseVocabulary,
    Directive,
    Full,
    Needs,
    Sampled,
    Support,
    TopKClip,
    TopKTail,
    divergence,
    make_streams,
    reverse_kl,
)

NAN = float("nan")
P = [0.5, 0.25, 0.25]
Q = [0.25, 0.25, 0.5]


def number(value):
    return float(value.detach())


def one_token(p=P, q=Q, *, sampled=0, ids=(0, 1, 2), mask=None, new=None):
    """Streams of one token over three entries: old p, teacher q, and `new` (default p) with a gradient."""
    logp = torch.tensor([[p]], dtype=torch.float64).log()
    logq = torch.tensor([[q]], dtype=torch.float64).log()
    logn = (
        (logp if new is None else torch.tensor([[new]], dtype=torch.float64).log()).clone().requires_grad_()
    )
    pick = list(ids)
    support = Support(
        logp_new_BTK=logn[:, :, pick],
        logp_old_BTK=logp[:, :, pick],
        logp_teacher_BTK=logq[:, :, pick],
        mask_BTK=torch.tensor([[mask or [True] * len(pick)]]),
    )
    streams = make_streams(
        logn[:, :, sampled],
        torch.ones(1, 1, dtype=torch.bool),
        logp_old_BT=logp[:, :, sampled],
        logp_teacher_BT=logq[:, :, sampled],
        support=support,
        vocabulary=DenseVocabulary(logn, logq, torch.ones(1, 1, dtype=torch.bool)),
    )
    return streams, logn


def test_the_sampled_gap_by_hand():
    """Entry 2: log(.5 / .25) = ln 2; clipped at .5."""
    streams, _ = one_token(sampled=2)
    assert number(Sampled(gap_clip=None)(streams).advantage_BT) == pytest.approx(math.log(2), abs=1e-6)
    assert number(Sampled(gap_clip=0.5)(streams).advantage_BT) == pytest.approx(0.5, abs=1e-6)
    assert number(Sampled()(streams).loss_BT) == 0.0
    assert Sampled().needs == Needs()
    assert Sampled(control_variate=True).needs == Needs(vocabulary=True)


@pytest.mark.parametrize("clip", [None, 0.5])
def test_the_control_variate_leaves_no_mean(clip):
    """sum_a p(a) A(a) = 0 exactly; without a clip A = gap + KL(p || q), KL = .25 ln 2."""
    estimator = Sampled(gap_clip=clip, control_variate=True)
    advantages = [number(estimator(one_token(sampled=a)[0]).advantage_BT) for a in range(3)]
    assert sum(p * a for p, a in zip(P, advantages, strict=True)) == pytest.approx(0.0, abs=1e-9)
    if clip is None:
        assert advantages[2] == pytest.approx(math.log(2) + 0.25 * math.log(2), abs=1e-6)


def test_topk_clip_by_hand():
    """S = {0, 2}: w = (.5, .25) / .75 = (2/3, 1/3); gaps (-ln 2, ln 2); new (.6, .15, .25): rho = (1.2, 1).

    A = (-2/3, 1/3) ln 2. Entry 0 (A < 0): max(1.2, clip 1.2) * 2/3 ln 2 = .8 ln 2. Entry 2: -1/3 ln 2.
    """
    streams, _ = one_token(ids=(0, 2), new=[0.6, 0.15, 0.25])
    loss = TopKClip(gap_clip=None)(streams).loss_BT.detach()
    assert number(loss) == pytest.approx((0.8 - 1 / 3) * math.log(2), abs=1e-6)
    clipped = TopKClip(gap_clip=0.5)(streams).loss_BT.detach()
    assert number(clipped) == pytest.approx(1.2 * 2 / 3 * 0.5 - 0.5 / 3, abs=1e-6)


def test_topk_clip_stops_at_the_interval():
    """Entry 2: rho 1.6, A > 0: the bound 1.28 counts, without a gradient. Entry 0: rho 0.7 < 0.8, A < 0: so does .8."""
    streams, new = one_token(ids=(0, 2), new=[0.35, 0.25, 0.4])
    directive = TopKClip(gap_clip=None)(streams)
    expected = 0.8 * 2 / 3 * math.log(2) - 1.28 / 3 * math.log(2)
    assert number(directive.loss_BT) == pytest.approx(expected, abs=1e-6)
    (grad,) = torch.autograd.grad(directive.loss_BT.sum(), new)
    assert torch.equal(grad, torch.zeros_like(grad))
    assert bool(directive.tokens["support_clipped"])


def test_all_entries_at_ratio_one_are_the_reverse_kl_in_value_and_gradient():
    """Over V: w = p, so sum of -p (log q - log p) = KL(p || q), and the gradient in the logits is the same."""
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(2, 3, 5, dtype=torch.float64, generator=generator).requires_grad_()
    teacher = torch.randn(2, 3, 5, dtype=torch.float64, generator=generator).log_softmax(-1)
    logp = logits.log_softmax(-1)
    everywhere = torch.ones(2, 3, 5, dtype=torch.bool)
    streams = make_streams(
        logp[:, :, 0],
        everywhere[:, :, 0],
        logp_teacher_BT=teacher[:, :, 0],
        support=Support(
            logp_new_BTK=logp, logp_old_BTK=logp.detach(), logp_teacher_BTK=teacher, mask_BTK=everywhere
        ),
        vocabulary=DenseVocabulary(logp, teacher, everywhere[:, :, 0]),
    )
    exact = Full()(streams).loss_BT
    torch.testing.assert_close(exact, reverse_kl(logp, teacher))
    (wanted,) = torch.autograd.grad(exact.sum(), logits, retain_graph=True)
    for estimator in (TopKClip(gap_clip=None, top_k=5), TopKTail(top_k=5)):
        loss = estimator(streams).loss_BT
        torch.testing.assert_close(loss, exact, atol=1e-6, rtol=0)
        (grad,) = torch.autograd.grad(loss.sum(), logits, retain_graph=True)
        torch.testing.assert_close(grad, wanted, atol=1e-6, rtol=0)


@pytest.mark.parametrize("alpha", [0.0, 0.5, 1.0])
def test_topk_tail_by_hand_and_with_all_entries(alpha):
    """S = {0}: two bins, (.5, .5) against (.25, .75)."""
    streams, _ = one_token(ids=(0,))
    bins = (torch.tensor([[0.5, 0.5]]).double().log(), torch.tensor([[0.25, 0.75]]).double().log())
    loss = TopKTail(divergence_alpha=alpha)(streams).loss_BT
    assert number(loss) == pytest.approx(float(divergence(*bins, alpha=alpha)), abs=1e-6)
    if alpha == 1.0:
        assert number(loss) == pytest.approx(0.5 * math.log(2) + 0.5 * math.log(2 / 3), abs=1e-6)
    whole, _ = one_token()
    full, tail = (kind(divergence_alpha=alpha)(whole).loss_BT for kind in (Full, TopKTail))
    assert number(tail) == pytest.approx(number(full), abs=1e-6)


def test_entries_outside_the_overlap_fall_into_the_tail():
    """S = {0, 1} of which 1 is masked: as S = {0}, whatever stands there."""
    masked, new = one_token(ids=(0, 1), mask=[True, False])
    poisoned = Support(
        logp_new_BTK=masked.support.logp_new_BTK,
        logp_old_BTK=torch.tensor([[[math.log(0.5), NAN]]], dtype=torch.float64),
        logp_teacher_BTK=torch.tensor([[[math.log(0.25), NAN]]], dtype=torch.float64),
        mask_BTK=masked.support.mask_BTK,
    )
    streams = dataclasses.replace(masked, support=poisoned)
    alone, _ = one_token(ids=(0,))
    for estimator in (TopKTail(), TopKClip(gap_clip=None)):
        loss = estimator(streams).loss_BT
        assert number(loss) == pytest.approx(number(estimator(alone).loss_BT), abs=1e-6)
        (grad,) = torch.autograd.grad(loss.sum(), new, retain_graph=True)
        assert torch.isfinite(grad).all()


@pytest.mark.parametrize("estimator", [Sampled(control_variate=True), TopKClip(), TopKTail(), Full()])
def test_a_directive_is_an_advantage_without_a_gradient_or_a_loss_with_one(estimator):
    streams, _ = one_token()
    directive = estimator(streams)
    assert isinstance(directive, Directive)
    assert not directive.advantage_BT.requires_grad
    sampled = isinstance(estimator, Sampled)
    assert bool(directive.advantage_BT) == sampled
    assert directive.loss_BT.requires_grad == (not sampled)
    assert all(
        not value.requires_grad and value.shape == streams.mask_BT.shape
        for value in directive.tokens.values()
    )


def test_rows_without_a_teacher_give_nothing_whatever_they_hold():
    new = torch.full((2, 2), -1.0, requires_grad=True)
    nan_BTK = torch.full((2, 2, 3), NAN)
    nowhere = torch.zeros(2, 2, dtype=torch.bool)
    streams = make_streams(
        new,
        torch.ones(2, 2, dtype=torch.bool),
        reward_B=torch.ones(2),
        logp_teacher_BT=nan_BTK[:, :, 0],
        support=Support(
            logp_new_BTK=nan_BTK,
            logp_old_BTK=nan_BTK,
            logp_teacher_BTK=nan_BTK,
            mask_BTK=torch.zeros(2, 2, 3, dtype=torch.bool),
        ),
        vocabulary=DenseVocabulary(nan_BTK, nan_BTK, nowhere),
    )
    for estimator in (Sampled(control_variate=True), TopKClip(), TopKTail(), Full()):
        directive = estimator(streams)
        assert torch.equal(directive.loss_BT.detach(), torch.zeros(2, 2)), estimator
        assert torch.equal(directive.advantage_BT, torch.zeros(2, 2)), estimator


def test_the_streams_say_which_rows_have_a_teacher_also_to_a_support_that_claims_all():
    """A support without masks of its own, NaN in the row without a teacher: the other row as it is alone."""
    two = torch.tensor([P, P], dtype=torch.float64)[:, None].log()
    teacher = torch.stack([torch.tensor([Q], dtype=torch.float64).log(), torch.full((1, 3), NAN).double()])
    new = two.clone().requires_grad_()
    streams = make_streams(
        new[:, :, 0],
        torch.ones(2, 1, dtype=torch.bool),
        logp_teacher_BT=teacher[:, :, 0],
        support=Support(
            logp_new_BTK=new,
            logp_old_BTK=two,
            logp_teacher_BTK=teacher,
            mask_BTK=torch.ones(2, 1, 3, dtype=torch.bool),
        ),
    )
    alone, _ = one_token()
    for estimator in (TopKClip(gap_clip=None), TopKTail()):
        loss = estimator(streams).loss_BT
        (grad,) = torch.autograd.grad(loss.sum(), new)
        assert number(loss[0]) == pytest.approx(number(estimator(alone).loss_BT), abs=1e-9)
        assert number(loss[1]) == 0.0
        assert torch.isfinite(grad).all()
        assert not grad[1].count_nonzero()


def test_what_is_missing_is_named():
    streams = make_streams(torch.zeros(1, 1) - 1, torch.ones(1, 1, dtype=torch.bool))
    with pytest.raises(ValueError, match=r"Streams\.support"):
        TopKTail()(streams)
    with pytest.raises(ValueError, match=r"Streams\.vocabulary"):
        Full()(streams)
