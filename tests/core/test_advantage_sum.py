"""The advantage sum as a whole: a batch worked by hand, reductions, gradcheck, padding and order."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from stereorl.core import (
    AdvantageSum,
    Sampled,
    Streams,
    Weights,
    aggregate,
    clipped_surrogate,
    ratio,
    token_weights,
)

NAN = float("nan")
PLAIN = AdvantageSum(estimator=Sampled(gap_clip=None), kl_coef=0.0)


def make(new, *, lengths=None, reward=None, teacher=None, mode="seq_mean_token_mean", **given):
    """Streams over `new` [B, T]; absent streams default to `new` itself, absent signals to NaN."""
    rows, width = new.shape
    lengths = lengths or [width] * rows
    mask = torch.tensor([[t < n for t in range(width)] for n in lengths])
    nan = torch.full_like(new.detach(), NAN)
    reward = [None] * rows if reward is None else reward
    adv = torch.tensor([[NAN if r is None else float(r)] * width for r in reward], dtype=new.dtype)
    fields = {"logp_old_BT": new.detach(), "logp_behaviour_BT": new.detach(), "logp_ref_BT": new.detach()}
    fields = {
        **fields,
        "logp_new_BT": new,
        "logp_teacher_BT": nan if teacher is None else teacher,
        "adv_eval_BT": adv,
        "mask_BT": mask,
        "reward_B": adv[:, 0],
        "has_reward_B": torch.tensor([r is not None for r in reward]),
        "has_teacher_B": torch.tensor([teacher is not None] * rows),
        **given,
    }
    return Streams(**fields, **aggregate_weights(fields, mode))


def aggregate_weights(fields, mode):
    mask = fields["mask_BT"]
    masks = {
        "weight_BT": mask,
        "weight_eval_BT": mask & fields["has_reward_B"][:, None],
        "weight_dir_BT": mask & fields["has_teacher_B"][:, None],
    }
    dtype = fields["logp_new_BT"].dtype
    return {name: token_weights(m, mode=mode, dtype=dtype) for name, m in masks.items()}


def test_a_batch_by_hand():
    """Row 0: reward +1 and a teacher, 2 tokens. Row 1: reward -1 alone, 1 token.

    Row 0, token 0: p_new .5, p_old .5, teacher .75: gap ln 1.5; A = 1 + .8 ln 1.5; rho 1; behaviour .25, w 2.
    Row 0, token 1: p_new .6, p_old .4, teacher .04: gap -ln 10, clipped -1; A = .2; rho 1.5, so 1.28; w 1.
    Row 1, token 0: p_new .3, p_old .5: A = -1; rho .6 -> L = max(.6, .8) = .8; behaviour 1 -> w .5.
    KL k3: row 0 token 0 ref .5: 0; token 1 ref .3: .5 - 1 + ln 2; row 1 ref .3: 0.
    """
    new = torch.tensor([[0.5, 0.6], [0.3, 1.0]]).log()
    streams = make(
        new,
        lengths=[2, 1],
        reward=[1, -1],
        logp_old_BT=torch.tensor([[0.5, 0.4], [0.5, 1.0]]).log(),
        logp_behaviour_BT=torch.tensor([[0.25, 0.4], [1.0, 1.0]]).log(),
        logp_ref_BT=torch.tensor([[0.5, 0.3], [0.3, 1.0]]).log(),
        logp_teacher_BT=torch.tensor([[0.75, 0.04], [NAN, NAN]]).log(),
        has_teacher_B=torch.tensor([True, False]),
    )
    objective = AdvantageSum(estimator=Sampled(gap_clip=1.0), kl_coef=0.02)(streams, Weights(1.0, 0.8))
    row0 = (2 * -(1 + 0.8 * math.log(1.5)) + 1 * -(1.28 * 0.2)) / 2
    row1 = 0.5 * 0.8
    surrogate = (row0 + row1) / 2
    kl = ((0 + (0.5 - 1 + math.log(2))) / 2 + 0) / 2
    assert float(objective.terms["eval"] + objective.terms["dir"]) == pytest.approx(surrogate, abs=1e-6)
    assert float(objective.terms["kl"]) == pytest.approx(0.02 * kl, abs=1e-6)
    assert float(objective.loss) == pytest.approx(surrogate + 0.02 * kl, abs=1e-6)
    assert objective.tokens["clipped"].tolist() == [[False, True], [True, False]]
    torch.testing.assert_close(
        objective.tokens["advantage"], torch.tensor([[1 + 0.8 * math.log(1.5), 0.2], [-1.0, 0.0]])
    )


def test_reduces_to_ppo_without_the_directive_signal():
    new, old = -torch.rand(2, 3) - 0.1, -torch.rand(2, 3) - 0.1
    streams = make(new, reward=[1, -1], teacher=torch.randn(2, 3), logp_old_BT=old, logp_behaviour_BT=old)
    ppo = aggregate(clipped_surrogate(ratio(new, old), streams.adv_eval_BT), streams.mask_BT)
    torch.testing.assert_close(PLAIN(streams, Weights(1.0, 0.0)).loss, ppo)


def test_reduces_to_distillation_without_the_evaluative_signal():
    new, teacher = -torch.rand(2, 3) - 0.1, -torch.rand(2, 3) - 0.1
    streams = make(new.requires_grad_(), reward=[1, -1], teacher=teacher)
    loss = PLAIN(streams, Weights(0.0, 1.0)).loss
    torch.testing.assert_close(loss, aggregate(-(teacher - new.detach()), streams.mask_BT))
    (grad,) = torch.autograd.grad(loss, new)  # ratio 1: the gradient is -A, weighted 1 / (B * T)
    torch.testing.assert_close(grad, -(teacher - new.detach()) / 6)


def test_an_identical_teacher_and_reference_leave_nothing_but_the_reward():
    new = (-torch.rand(1, 4)).requires_grad_()
    fused = AdvantageSum()(make(new, reward=[1], teacher=new.detach()), Weights(1.0, 1.0))
    alone = AdvantageSum()(make(new, reward=[1]), Weights(1.0, 1.0))
    assert torch.equal(fused.loss, alone.loss)
    assert torch.equal(fused.tokens["ratio"], torch.ones(1, 4))


def test_an_empty_mask_is_a_defined_zero():
    new = torch.full((2, 3), -1.0, requires_grad=True)
    objective = AdvantageSum()(make(new, lengths=[0, 0], reward=[1, None]), Weights(1.0, 1.0))
    (grad,) = torch.autograd.grad(objective.loss, new)
    assert float(objective.loss.detach()) == 0.0
    assert torch.equal(grad, torch.zeros(2, 3))


def test_gradcheck():
    generator = torch.Generator().manual_seed(1)
    new = (-torch.rand(2, 3, generator=generator, dtype=torch.float64) - 0.1).requires_grad_()
    other = new.detach() + 0.05 * torch.randn(2, 3, generator=generator, dtype=torch.float64)
    fixed = {"logp_old_BT": other, "logp_behaviour_BT": other, "logp_ref_BT": other}

    def loss(x):
        streams = make(x, lengths=[3, 2], reward=[1, None], teacher=other - 0.3, **fixed)
        return AdvantageSum()(streams, Weights(1.0, 0.7)).loss

    assert torch.autograd.gradcheck(loss, (new,))


log_probs = st.floats(-8, -0.01)


@st.composite
def ragged(draw):
    """Rows of (new, old, behaviour, reference, teacher or None, reward or None), each of its own length."""
    rows = []
    for _ in range(draw(st.integers(1, 4))):
        n = draw(st.integers(1, 5))
        stream = st.lists(log_probs, min_size=n, max_size=n)
        reward = draw(st.sampled_from([None, -1.0, 0.0, 1.0]))
        rows.append((*(draw(stream) for _ in range(4)), draw(st.none() | stream), reward))
    return rows


def padded(rows, extra, pad):
    """Streams of `rows`, right-padded with `pad` by `extra` beyond the longest."""
    width = max(len(row[0]) for row in rows) + extra
    blocks = [
        torch.tensor(
            [(row[i] or [NAN] * len(row[0])) + [pad] * (width - len(row[0])) for row in rows]
        ).double()
        for i in range(5)
    ]
    new = blocks[0].requires_grad_()
    streams = make(
        new,
        lengths=[len(row[0]) for row in rows],
        reward=[row[5] for row in rows],
        logp_old_BT=blocks[1],
        logp_behaviour_BT=blocks[2],
        logp_ref_BT=blocks[3],
        logp_teacher_BT=blocks[4],
        has_teacher_B=torch.tensor([row[4] is not None for row in rows]),
    )
    return streams, new


def row_of(streams, i):
    fields = {f.name: getattr(streams, f.name) for f in dataclasses.fields(streams)}
    return Streams(**{name: value[i : i + 1] for name, value in fields.items() if value is not None})


def loss_and_gradients(rows, extra=0, pad=-1.0):
    streams, new = padded(rows, extra, pad)
    loss = AdvantageSum()(streams, Weights(1.0, 1.0)).loss
    (grad,) = torch.autograd.grad(loss, new)
    return float(loss.detach()), [grad[i, : len(row[0])].tolist() for i, row in enumerate(rows)]


@settings(max_examples=60, deadline=None)
@given(
    ragged(), st.integers(0, 4), st.sampled_from([0.0, -3.0, -1e4, 5.0]), st.randoms(use_true_random=False)
)
def test_padding_and_row_order_change_nothing(rows, extra, pad, random):
    loss, grads = loss_and_gradients(rows)
    order = list(range(len(rows)))
    random.shuffle(order)
    other_loss, other_grads = loss_and_gradients([rows[i] for i in order], extra, pad)
    assert other_loss == pytest.approx(loss, abs=1e-12)
    for position, i in enumerate(order):
        assert other_grads[position] == pytest.approx(grads[i], abs=1e-12)


@settings(max_examples=40, deadline=None)
@given(ragged(), st.sampled_from(["token_mean", "seq_mean_token_mean"]))
def test_micro_batches_add_up(rows, mode):
    streams, _ = padded(rows, 0, 0.0)
    fields = {f.name: getattr(streams, f.name) for f in dataclasses.fields(streams)}
    streams = dataclasses.replace(streams, **aggregate_weights(fields, mode))
    whole = AdvantageSum()(streams, Weights(1.0, 1.0))
    parts = [
        AdvantageSum()(
            row_of(streams, i),
            Weights(1.0, 1.0),
        )
        for i in range(len(rows))
    ]
    assert float(sum(p.loss.detach() for p in parts)) == pytest.approx(float(whole.loss.detach()), abs=1e-12)
