"""Every fusion with every estimator: by hand, identities, gradcheck, and what must never change a result."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from stereorl.choices import ESTIMATORS, FUSIONS, find
from stereorl.core import (
    AdvantageSum,
    Clipped,
    DenseVocabulary,
    Full,
    LossSum,
    Route,
    Sampled,
    Streams,
    Support,
    TopK,
    TopKClip,
    TopKTail,
    Weights,
    advantage_sum,
    aggregate,
    clipped_surrogate,
    directive_gap,
    entropy_estimate,
    importance_weight,
    make_streams,
    masked_mean,
    ratio,
    rms,
    spread,
    surrogate_ratio,
    token_weights,
    weighted_sum,
)

NAN = float("nan")
V = 5
PAIRS = [(f, e) for f in FUSIONS for e in ESTIMATORS]
pairs = pytest.mark.parametrize(("fusion", "estimator"), PAIRS)


def make(fusion, estimator, **given):
    return find(FUSIONS, fusion)(estimator=find(ESTIMATORS, estimator)(), **given)


@dataclasses.dataclass
class Row:
    """One reply over V entries: [n, V] logits now, before, of the teacher (or None); sampled ids; a reward or None."""

    new: torch.Tensor
    old: torch.Tensor
    teacher: torch.Tensor | None
    ids: torch.Tensor
    behaviour: torch.Tensor
    reference: torch.Tensor
    reward: float | None


def random_row(seed, n, *, teacher=True, reward=1.0):
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    new = draw(n, V)
    return Row(
        new=new,
        old=new + 0.3 * draw(n, V),
        teacher=draw(n, V) if teacher else None,
        ids=torch.randint(0, V, (n,), generator=generator),
        behaviour=-draw(n).abs() - 0.1,
        reference=-draw(n).abs() - 0.1,
        reward=reward,
    )


MIXED = [
    random_row(1, 3, reward=1.0),
    random_row(2, 2, reward=-1.0),
    random_row(3, 4, teacher=False, reward=-1.0),
    random_row(4, 1, reward=None),
]


SHORT = [  # the same four kinds, for what differentiates entry by entry
    random_row(5, 2, reward=1.0),
    random_row(6, 1, reward=-1.0),
    random_row(7, 2, teacher=False, reward=-1.0),
    random_row(8, 1, reward=None),
]


def streams_of(rows, *, leaf=None, extra=0, pad=-1.0, mode="seq_mean_token_mean", places=None):
    """Streams of `rows`, padded with `pad` by `extra` beyond the longest; `leaf` [B, T, V] replaces the logits now.
    `places`: where each row's tokens stand, in order; by default at its beginning.
    """
    width = max(len(row.ids) for row in rows) + extra
    places = places or [list(range(len(row.ids))) for row in rows]
    mask = torch.tensor([[t in at for t in range(width)] for at in places])

    def padded(values, *shape, fill=pad):
        out = torch.full((len(rows), width, *shape), fill, dtype=torch.float64)
        for b, value in enumerate(values):
            if value is not None:
                out[b, places[b]] = value
        return out

    if leaf is None:
        leaf = padded([row.new for row in rows], V).requires_grad_()
    logp = leaf.log_softmax(-1)
    old = padded([row.old.log_softmax(-1) for row in rows], V)
    teacher = padded([None if r.teacher is None else r.teacher.log_softmax(-1) for r in rows], V, fill=NAN)
    has_teacher = torch.tensor([row.teacher is not None for row in rows])
    taught = mask & has_teacher[:, None]
    ids = torch.zeros(mask.shape, dtype=torch.long)
    for b, row in enumerate(rows):
        ids[b, places[b]] = row.ids
    best = old.topk(3, dim=-1).indices

    def at(values):
        return values.gather(-1, ids[..., None]).squeeze(-1)

    made = make_streams(
        at(logp),
        mask,
        reward_B=torch.tensor([NAN if r.reward is None else r.reward for r in rows], dtype=torch.float64),
        logp_old_BT=at(old),
        logp_behaviour_BT=padded([row.behaviour for row in rows]),
        logp_ref_BT=padded([row.reference for row in rows]),
        logp_teacher_BT=at(teacher),
        support=Support(
            logp_new_BTK=logp.gather(-1, best),
            logp_old_BTK=old.gather(-1, best),
            logp_teacher_BTK=teacher.gather(-1, best),
            mask_BTK=taught[..., None].expand(best.shape),
        ),
        vocabulary=DenseVocabulary(logp, teacher, taught),
        aggregation=mode,
    )
    return made, leaf


def loss_and_gradients(fusion, rows, **given):
    streams, leaf = streams_of(rows, **given)
    objective = fusion(streams, Weights(0.7, 1.3))
    (grad,) = torch.autograd.grad(objective.loss, leaf)
    places = given.get("places") or [list(range(len(row.ids))) for row in rows]
    return float(objective.loss.detach()), [grad[b, at] for b, at in enumerate(places)]


@pairs
def test_gradcheck(fusion, estimator):
    made = make(fusion, estimator, kl_coef=0.1)
    leaf = streams_of(SHORT)[1].detach().requires_grad_()
    # old log-probs are constants: the function of the leaf alone
    assert torch.autograd.gradcheck(
        lambda x: made(streams_of(SHORT, leaf=x)[0], Weights(0.7, 1.3)).loss, (leaf,), atol=1e-6
    )


VARIANTS = {
    "k1": AdvantageSum(kl="k1", kl_coef=0.5),
    "k2": LossSum(kl="k2", kl_coef=0.5),
    "mirrored": AdvantageSum(clip="mirrored"),
    "dual": TopK(dual_clip=1.5, estimator=Sampled(gap_clip=None)),
    "narrow": Route(eps_low=0.05, eps_high=0.05),
    "variate": LossSum(estimator=Sampled(control_variate=True)),
    "certain": Route(entropy_beta=1.0),
    "certain_full": Route(entropy_beta=2.0, estimator=Full(divergence_alpha=0.3)),
    "jsd": AdvantageSum(estimator=Full(divergence_alpha=0.5)),
    "forward": TopK(estimator=Full(divergence_alpha=0.0)),
    "tail_jsd": TopK(estimator=TopKTail(divergence_alpha=0.5)),
    "tail_forward": LossSum(estimator=TopKTail(divergence_alpha=0.0)),
    "clip_all": TopK(estimator=TopKClip(gap_clip=None, clip="mirrored", dual_clip=1.1)),
    "clip_narrow": LossSum(estimator=TopKClip(eps_low=0.01, eps_high=0.01)),
}
variants = pytest.mark.parametrize("made", VARIANTS.values(), ids=VARIANTS)


@variants
def test_gradcheck_of_the_other_settings(made):
    fixed, leaf = streams_of(MIXED)

    def loss(x):
        streams, _ = streams_of(MIXED, leaf=x)
        if isinstance(made.estimator, Sampled):  # its control variate is a constant, like the gap
            streams = dataclasses.replace(streams, vocabulary=fixed.vocabulary)
        return made(streams, Weights(0.7, 1.3)).loss

    # along random directions: every entry by itself is what the test above does
    assert torch.autograd.gradcheck(loss, (leaf.detach().requires_grad_(),), atol=1e-6, fast_mode=True)


@variants
@settings(max_examples=8, deadline=None)
@given(st.integers(0, 99), st.integers(0, 3), st.permutations(range(4)))
def test_padding_and_row_order_change_nothing_under_other_settings(made, seed, extra, order):
    """And micro-batches of a row each add up."""
    rows = [
        random_row(seed, 3, reward=-1.0),
        random_row(seed + 1, 2, reward=1.0),
        random_row(seed + 2, 4, teacher=False),
        random_row(seed + 3, 1, reward=None),
    ]
    loss, grads = loss_and_gradients(made, rows)
    other, others = loss_and_gradients(made, [rows[i] for i in order], extra=extra, pad=-3.0)
    assert other == pytest.approx(loss, abs=1e-10)
    for position, i in enumerate(order):
        torch.testing.assert_close(others[position], grads[i], atol=1e-10, rtol=0)
    streams, _ = streams_of(rows)
    parts = [float(made(row_of(streams, b), Weights(0.7, 1.3)).loss.detach()) for b in range(4)]
    assert sum(parts) == pytest.approx(loss, abs=1e-10)


@pairs
def test_terms_add_up_and_statistics_are_finite(fusion, estimator):
    streams, _ = streams_of(MIXED)
    objective = make(fusion, estimator)(streams, Weights(0.7, 1.3))
    assert {"eval", "dir", "kl"} == objective.terms.keys()
    assert float(objective.loss.detach()) == pytest.approx(
        sum(float(term.detach()) for term in objective.terms.values()), abs=1e-12
    )
    for name, value in objective.tokens.items():
        assert value.shape == streams.mask_BT.shape, name
        assert not value.requires_grad
        assert torch.isfinite(value[streams.mask_BT].double()).all(), name


@pairs
@settings(max_examples=10, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.integers(0, 99), st.integers(1, 4), st.booleans(), st.sampled_from([None, -1.0, 0.0, 1.0])
        ),
        min_size=1,
        max_size=4,
    ),
    st.integers(0, 3),
    st.sampled_from([0.0, -3.0, 5.0]),
    st.randoms(use_true_random=False),
)
def test_padding_and_row_order_change_nothing(fusion, estimator, drawn, extra, pad, random):
    rows = [random_row(seed, n, teacher=teacher, reward=reward) for seed, n, teacher, reward in drawn]
    made = make(fusion, estimator, kl_coef=0.1)
    loss, grads = loss_and_gradients(made, rows)
    order = list(range(len(rows)))
    random.shuffle(order)
    other, others = loss_and_gradients(made, [rows[i] for i in order], extra=extra, pad=pad)
    assert other == pytest.approx(loss, abs=1e-10)
    for position, i in enumerate(order):
        torch.testing.assert_close(others[position], grads[i], atol=1e-10, rtol=0)


@pairs
@settings(max_examples=10, deadline=None)
@given(
    st.integers(0, 99),
    st.integers(1, 3),
    st.sampled_from([0.0, -3.0, 5.0]),
    st.randoms(use_true_random=False),
)
def test_tokens_outside_the_mask_change_nothing_wherever_they_stand(
    fusion, estimator, seed, extra, pad, random
):
    """Gaps in the mask, as a tool's words within a reply would make: the tokens that remain are trained as without."""
    rows = [random_row(seed, 3), random_row(seed + 1, 2, reward=-1.0), random_row(seed + 2, 4, teacher=False)]
    made = make(fusion, estimator, kl_coef=0.1)
    loss, grads = loss_and_gradients(made, rows)
    places = [sorted(random.sample(range(4 + extra), len(row.ids))) for row in rows]
    other, others = loss_and_gradients(made, rows, extra=extra, pad=pad, places=places)
    assert other == pytest.approx(loss, abs=1e-10)
    for mine, theirs in zip(grads, others, strict=True):
        torch.testing.assert_close(theirs, mine, atol=1e-10, rtol=0)


anything = st.sampled_from([NAN, math.inf, -math.inf, 0.0, 1e6])


@given(
    st.lists(
        st.lists(st.tuples(st.floats(-8, -0.01), st.booleans()), min_size=3, max_size=3),
        min_size=1,
        max_size=3,
    ),
    anything,
)
def test_what_stands_outside_a_mask_is_read_by_no_function_of_tokens(cells, junk):
    clean = torch.tensor([[value for value, _ in row] for row in cells], dtype=torch.float64)
    mask = torch.tensor([[kept for _, kept in row] for row in cells])
    dirty = torch.where(mask, clean, torch.full_like(clean, junk))
    for mode in ("token_mean", "seq_mean_token_mean"):
        assert torch.equal(aggregate(dirty, mask, mode=mode), aggregate(clean, mask, mode=mode))
        weight = token_weights(mask, mode=mode, dtype=clean.dtype)
        assert not weight[~mask].count_nonzero()
        assert torch.equal(weighted_sum(dirty, weight), weighted_sum(clean, weight))
    for function in (masked_mean, rms, entropy_estimate, spread):
        assert function(dirty, mask) == function(clean, mask), function
    assert torch.equal(directive_gap(dirty, clean / 2, mask), directive_gap(clean, clean / 2, mask))
    assert torch.equal(
        directive_gap(clean / 2, dirty, mask, clip=1.0), directive_gap(clean / 2, clean, mask, clip=1.0)
    )
    assert torch.equal(importance_weight(clean / 2, dirty, mask), importance_weight(clean / 2, clean, mask))
    yes = torch.ones(len(mask), dtype=torch.bool)
    summed = [
        advantage_sum(a, b, has_reward_B=yes, has_teacher_B=yes, mask_BT=mask)
        for a, b in ((clean, clean), (dirty, dirty))
    ]
    assert torch.equal(*summed)


@pairs
@pytest.mark.parametrize("mode", ["token_mean", "seq_mean_token_mean"])
def test_micro_batches_add_up(fusion, estimator, mode):
    streams, _ = streams_of(MIXED, mode=mode)
    made = make(fusion, estimator)
    whole = made(streams, Weights(0.7, 1.3)).loss.detach()
    parts = [made(row_of(streams, b), Weights(0.7, 1.3)).loss.detach() for b in range(len(MIXED))]
    assert float(sum(parts)) == pytest.approx(float(whole), abs=1e-12)


def row_of(streams, b):
    def cut(value):
        if dataclasses.is_dataclass(value):
            return type(value)(**{f.name: cut(getattr(value, f.name)) for f in dataclasses.fields(value)})
        return value[b : b + 1]

    return Streams(**{f.name: cut(getattr(streams, f.name)) for f in dataclasses.fields(streams)})


@pairs
@pytest.mark.parametrize("kind", ["no reward", "no teacher", "neither"])
def test_an_absent_signal_is_an_exact_zero(fusion, estimator, kind):
    rows = [
        random_row(
            seed,
            3,
            teacher=kind == "no reward",
            reward=1.0 if kind == "no teacher" else None,
        )
        for seed in (1, 2)
    ]
    streams, leaf = streams_of(rows)
    objective = make(fusion, estimator, kl_coef=0.0)(streams, Weights(1.0, 1.0))
    absent = {"no reward": ["eval"], "no teacher": ["dir"], "neither": ["eval", "dir"]}[kind]
    for name in absent:
        assert float(objective.terms[name].detach()) == 0.0
        (grad,) = torch.autograd.grad(objective.terms[name], leaf, retain_graph=True, allow_unused=True)
        assert grad is None or not grad.count_nonzero()
    assert math.isfinite(float(objective.loss.detach()))


@pairs
def test_nothing_trained_is_a_defined_zero(fusion, estimator):
    streams, leaf = streams_of(MIXED)
    nothing = torch.zeros_like(streams.mask_BT)
    empty = dataclasses.replace(
        streams,
        mask_BT=nothing,
        support=dataclasses.replace(streams.support, mask_BTK=torch.zeros_like(streams.support.mask_BTK)),
        vocabulary=dataclasses.replace(streams.vocabulary, mask_BT=nothing),
        **{
            name: token_weights(nothing, mode="token_mean", dtype=torch.float64)
            for name in ("weight_BT", "weight_eval_BT", "weight_dir_BT")
        },
    )
    loss = make(fusion, estimator)(empty, Weights(1.0, 1.0)).loss
    (grad,) = torch.autograd.grad(loss, leaf)
    assert float(loss.detach()) == 0.0
    assert not grad.count_nonzero()


# --- identities


@pytest.mark.parametrize("fusion", [AdvantageSum, LossSum, TopK, Route])
def test_without_the_directive_signal_it_is_ppo(fusion):
    rows = [dataclasses.replace(row, teacher=None, reward=row.reward or -1.0) for row in MIXED]
    streams, _ = streams_of(rows)
    streams = dataclasses.replace(streams, logp_behaviour_BT=streams.logp_old_BT)
    rho = ratio(streams.logp_new_BT, streams.logp_old_BT)
    ppo = aggregate(clipped_surrogate(rho, streams.adv_eval_BT), streams.mask_BT)
    torch.testing.assert_close(fusion(kl_coef=0.0)(streams, Weights(1.0, 0.0)).loss, ppo)


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("fusion", ["advantage_sum", "loss_sum", "topk"])
def test_at_w_dir_0_it_is_ppo_whatever_the_teachers_say(fusion, estimator):
    """Every row has a reward, so that all denominators are one; also the gradient."""
    rows = [dataclasses.replace(row, reward=row.reward or -1.0) for row in MIXED]
    streams, leaf = streams_of(rows)
    streams = dataclasses.replace(streams, logp_behaviour_BT=streams.logp_old_BT)
    rho = ratio(streams.logp_new_BT, streams.logp_old_BT)
    ppo = 0.7 * aggregate(clipped_surrogate(rho, streams.adv_eval_BT), streams.mask_BT)
    loss = make(fusion, estimator, kl_coef=0.0)(streams, Weights(0.7, 0.0)).loss
    torch.testing.assert_close(loss, ppo)
    got, wanted = (torch.autograd.grad(value, leaf, retain_graph=True)[0] for value in (loss, ppo))
    torch.testing.assert_close(got, wanted)


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("fusion", ["advantage_sum", "loss_sum", "topk"])
def test_at_w_eval_0_it_is_distillation_whatever_the_rewards_are(fusion, estimator):
    """Three of four rows are taught: under one denominator each counts a quarter, under its own a third."""
    streams, leaf = streams_of(MIXED)
    streams = dataclasses.replace(streams, logp_behaviour_BT=streams.logp_old_BT)
    directive = find(ESTIMATORS, estimator)()(streams)
    rho = ratio(streams.logp_new_BT, streams.logp_old_BT)
    alone = clipped_surrogate(rho, directive.advantage_BT) + directive.loss_BT
    mask = streams.teacher_mask_BT if fusion == "loss_sum" else streams.mask_BT
    made = make(fusion, estimator, kl_coef=0.0)
    if fusion == "loss_sum":
        made = dataclasses.replace(made, token_threshold=0.0)
    loss, opd = made(streams, Weights(0.0, 1.3)).loss, 1.3 * aggregate(alone, mask)
    torch.testing.assert_close(loss, opd)
    got, wanted = (torch.autograd.grad(value, leaf, retain_graph=True)[0] for value in (loss, opd))
    torch.testing.assert_close(got, wanted)


def test_advantage_sum_is_one_clipped_surrogate_of_the_sum():
    streams, _ = streams_of(MIXED[:2])
    streams = dataclasses.replace(streams, logp_behaviour_BT=streams.logp_old_BT)
    gap = (streams.logp_teacher_BT - streams.logp_old_BT).clamp(-1, 1)
    rho = ratio(streams.logp_new_BT, streams.logp_old_BT)
    whole = aggregate(clipped_surrogate(rho, 0.7 * streams.adv_eval_BT + 1.3 * gap), streams.mask_BT)
    objective = AdvantageSum(estimator=Sampled(gap_clip=1.0), kl_coef=0.0)(streams, Weights(0.7, 1.3))
    torch.testing.assert_close(objective.loss, whole)


@pytest.mark.parametrize("fusion", [AdvantageSum, LossSum, TopK, Route])
def test_without_the_evaluative_signal_it_is_distillation(fusion):
    """At ratio 1 the loss is -mean(gap) and its gradient -gap / N, for rows that have a teacher and no reward."""
    new = torch.tensor([[-1.0, -2.0], [-0.5, -1.5]], requires_grad=True)
    teacher = torch.tensor([[-0.5, -2.5], [-1.0, -0.9]])
    gap = teacher - new.detach()
    made = fusion(estimator=Sampled(gap_clip=None), kl_coef=0.0)
    streams = make_streams(new, torch.ones(2, 2, dtype=torch.bool), logp_teacher_BT=teacher)
    loss = made(streams, Weights(0.0, 1.0)).loss
    assert float(loss.detach()) == pytest.approx(-float(gap.mean()), abs=1e-6)
    (grad,) = torch.autograd.grad(loss, new)
    torch.testing.assert_close(grad, -gap / 4)


@pytest.mark.parametrize("fusion", [AdvantageSum, LossSum, TopK, Route])
def test_ratio_one_gives_the_gradient_minus_a(fusion):
    new = torch.tensor([[-1.0, -2.0], [-0.5, -1.5]], requires_grad=True)
    streams = make_streams(new, torch.ones(2, 2, dtype=torch.bool), reward_B=torch.tensor([1.0, -1.0]))
    (grad,) = torch.autograd.grad(
        fusion(estimator=Sampled(), kl_coef=0.0)(streams, Weights(0.5, 1.0)).loss, new
    )
    torch.testing.assert_close(grad, torch.tensor([[-0.5, -0.5], [0.5, 0.5]]) / 4)


def test_topk_over_all_entries_has_the_gradient_of_the_full_divergence():
    rows = [dataclasses.replace(row, old=row.new) for row in MIXED[:2]]
    streams, leaf = streams_of(rows)
    logp = leaf.log_softmax(-1)
    whole = Support(
        logp_new_BTK=logp,
        logp_old_BTK=logp.detach(),
        logp_teacher_BTK=streams.vocabulary.logp_teacher_BTV,
        mask_BTK=streams.teacher_mask_BT[..., None].expand(logp.shape),
    )
    streams = dataclasses.replace(streams, support=whole)
    losses = [
        TopK(estimator=estimator, kl_coef=0.0)(streams, Weights(0.0, 1.0)).loss
        for estimator in (TopKClip(gap_clip=None, top_k=V), Full())
    ]
    assert float(losses[0].detach()) == pytest.approx(float(losses[1].detach()), abs=1e-9)
    left, right = (torch.autograd.grad(loss, leaf, retain_graph=True)[0] for loss in losses)
    torch.testing.assert_close(left, right, atol=1e-9, rtol=0)


def test_the_shares_of_a_clipped_surrogate_are_linear():
    rho = torch.tensor([[0.5, 0.9, 1.5, 4.0]])
    first, second = torch.tensor([[1.0, -2.0, 0.5, -1.0]]), torch.tensor([[-3.0, 1.0, 1.0, -1.0]])
    for bounds in ({}, {"clip": "mirrored"}, {"dual_clip": 3.0}):
        factor = surrogate_ratio(rho, first + second, **bounds)
        whole = clipped_surrogate(rho, first + second, **bounds)
        torch.testing.assert_close(-factor * first + -factor * second, whole)


# --- by hand


def test_clipped_shares_one_clip_and_one_importance_weight():
    """rho 1.5, behaviour half of old: weight 2, cap 1.5. Advantages 1 and -.4 sum to .6 > 0, so both take 1.28:
    -1.28 * 1.5 * 1 and +1.28 * 1.5 * .4. The second alone would not be clipped from above: 1.5 * 1.5 * .4.
    """
    old = torch.tensor([[0.4]]).log()
    streams = make_streams(
        old + math.log(1.5), torch.tensor([[True]]), logp_old_BT=old, logp_behaviour_BT=old - math.log(2)
    )
    base = Clipped(importance_cap=1.5)
    first, second = torch.tensor([[1.0]]), torch.tensor([[-0.4]])
    shares = [float(share) for share in base.surrogates(streams, first, second)]
    assert shares == pytest.approx([-1.28 * 1.5, 1.28 * 1.5 * 0.4], abs=1e-6)
    assert [float(share) for share in base.surrogates(streams, second)] == pytest.approx([0.9], abs=1e-6)
    assert float(base.importance(streams)) == pytest.approx(1.5, abs=1e-6)
    assert [float(share) for share in Clipped().surrogates(streams, first)] == pytest.approx([-2.56])
    assert base.evaluative(streams).tolist() == [[0.0]]
    settings = Clipped(eps_low=0.1, eps_high=0.3, clip="mirrored", dual_clip=4.0)
    assert settings.bounds == {"eps_low": 0.1, "eps_high": 0.3, "clip": "mirrored", "dual_clip": 4.0}


def by_hand(fusion, *, reward, teacher, weights=(1.0, 1.0), new=None, old=None):
    """Two tokens a row; NaN in `reward` or None in `teacher` marks what a row lacks."""
    old = torch.full((len(reward), 2), math.log(0.5)) if old is None else old
    new = old.clone() if new is None else new
    gap = torch.tensor([[NAN, NAN] if row is None else row for row in teacher])
    streams = make_streams(
        new.requires_grad_(),
        torch.ones_like(new, dtype=torch.bool),
        reward_B=torch.tensor(reward),
        logp_old_BT=old,
        logp_teacher_BT=old + gap,
    )
    return {k: float(v.detach()) for k, v in fusion(streams, Weights(*weights)).terms.items()}


def test_loss_sum_by_hand():
    """Rewards 1 and -1 on rows 0, 1: mean -(1 - 1) / 2 = 0. Row 0 has gaps .05 (left out) and .4: the row's
    whole weight goes to the second, -.4. Row 2 has gaps .2 and .6: -.4. Two taught rows: -(.4 + .4) / 2. Times w_dir 2.
    """
    terms = by_hand(
        LossSum(estimator=Sampled(gap_clip=None)),
        reward=[1.0, -1.0, NAN],
        teacher=[[0.05, 0.4], None, [0.2, 0.6]],
        weights=(1.0, 2.0),
    )
    assert terms["eval"] == pytest.approx(0.0, abs=1e-6)
    assert terms["dir"] == pytest.approx(-2 * (0.4 + 0.4) / 2, abs=1e-6)


def test_loss_sum_has_its_own_denominators():
    """One reward among three rows weighs 1, not 1/3; AdvantageSum gives it a third."""
    given = {"reward": [1.0, NAN, NAN], "teacher": [None, [0.2, 0.6], [0.2, 0.6]]}
    assert by_hand(LossSum(), **given)["eval"] == pytest.approx(-1.0, abs=1e-6)
    assert by_hand(AdvantageSum(), **given)["eval"] == pytest.approx(-1 / 3, abs=1e-6)


def test_loss_sum_leaves_out_a_row_whose_gaps_are_all_small():
    """tau .5: row 0 has none above, so its half of the weight goes to nobody; row 1 hands all of its to the .6."""
    fusion = LossSum(estimator=Sampled(gap_clip=None), token_threshold=0.5)
    given = {"reward": [NAN, NAN], "teacher": [[0.5, -0.3], [0.2, -0.6]]}
    assert by_hand(fusion, **given)["dir"] == pytest.approx(0.6 / 2, abs=1e-6)
    # a third token more or less in a row changes no other row's share: under tau = 0 each has its mean
    plain = LossSum(estimator=Sampled(gap_clip=None), token_threshold=0.0)
    assert by_hand(plain, **given)["dir"] == pytest.approx(-(0.1 - 0.2) / 2, abs=1e-6)


@pytest.mark.parametrize("fusion", [AdvantageSum, LossSum, TopK, Route])
def test_who_sampled_the_token_weighs_surrogates_and_no_divergence(fusion):
    """Behaviour half of old: weight 2. Row 0: reward -1, no teacher; row 1: gap .5, or KL((.4, .6) || (.66, .34))."""
    new = torch.tensor([[[0.4, 0.6]], [[0.4, 0.6]]]).log().requires_grad_()
    old = new[:, :, 0].detach()
    teacher = torch.tensor([[[NAN, NAN]], [[math.log(0.4) + 0.5, math.log(1 - 0.4 * math.exp(0.5))]]])
    mask = torch.ones(2, 1, dtype=torch.bool)
    given = {
        "reward_B": torch.tensor([-1.0, NAN]),
        "logp_behaviour_BT": old - math.log(2),
        "logp_teacher_BT": teacher[:, :, 0],
        "vocabulary": DenseVocabulary(new, teacher, mask & torch.tensor([[False], [True]])),
    }
    streams = make_streams(new[:, :, 0], mask, **given)
    share = 1.0 if fusion is LossSum else 0.5
    sampled = fusion(estimator=Sampled(gap_clip=None))(streams, Weights(1.0, 1.0)).terms
    assert float(sampled["eval"].detach()) == pytest.approx(2 * 1 * share, abs=1e-6)
    assert float(sampled["dir"].detach()) == pytest.approx(-2 * 0.5 * share, abs=1e-6)
    full = fusion(estimator=Full())(streams, Weights(1.0, 1.0)).terms
    kl = 0.4 * -0.5 + 0.6 * (math.log(0.6) - math.log(1 - 0.4 * math.exp(0.5)))
    assert float(full["dir"].detach()) == pytest.approx(kl * share, abs=1e-6)


def test_loss_sum_leaves_out_a_tenth_of_a_nat_unless_told():
    """Gaps .09 and .11: the second alone."""
    terms = by_hand(LossSum(), reward=[NAN], teacher=[[0.09, 0.11]])
    assert terms["dir"] == pytest.approx(-0.11, abs=1e-6)


@pytest.mark.parametrize("fusion", [AdvantageSum, LossSum, TopK, Route])
def test_the_statistics_by_hand(fusion):
    """Weights .5 and 2. Rewards 1 and none, gaps .3 and 3, clipped at 1: .5 + .6 and 2; in Route .5 and 2.
    rho is 1.5 in row 0, clipped above 0, and 1 in row 1. Behaviour half of old: 2. Reference half of now: k1 = ln 2.
    """
    old = torch.tensor([[0.4], [0.4]]).log()
    new = old + torch.tensor([[1.5], [1.0]]).log()
    streams = make_streams(
        new.requires_grad_(),
        torch.ones(2, 1, dtype=torch.bool),
        reward_B=torch.tensor([1.0, NAN]),
        logp_old_BT=old,
        logp_behaviour_BT=old - math.log(2),
        logp_ref_BT=new.detach() - math.log(2),
        logp_teacher_BT=old + torch.tensor([[0.3], [3.0]]),
    )
    tokens = fusion(estimator=Sampled(gap_clip=1.0), kl="k1")(streams, Weights(0.5, 2.0)).tokens
    expected = {
        "raw_gap": [0.3, 3.0],
        "gap": [0.3, 1.0],
        "advantage": [0.5 if fusion is Route else 1.1, 2.0],
        "ratio": [1.5, 1.0],
        "clipped": [True, False],
        "importance": [2.0, 2.0],
        "kl": [math.log(2), math.log(2)],
    }
    assert tokens.keys() == expected.keys()
    for name, wanted in expected.items():
        assert tokens[name][:, 0].tolist() == pytest.approx(wanted, abs=1e-6), name


def test_route_by_hand():
    """Four rows, weights .5 and 2: +1 with a teacher -> reward (-.5); -1 with gaps (.2, .6) -> -.4 * 2; -1 without a
    teacher -> reward (+.5); no reward with gaps (.1, .3) -> -.2 * 2. Each a quarter.
    """
    terms = by_hand(
        Route(estimator=Sampled(gap_clip=None)),
        reward=[1.0, -1.0, -1.0, NAN],
        teacher=[[0.9, 0.9], [0.2, 0.6], None, [0.1, 0.3]],
        weights=(0.5, 2.0),
    )
    assert terms["eval"] == pytest.approx((-0.5 + 0.5) / 4, abs=1e-6)
    assert terms["dir"] == pytest.approx(-2 * (0.4 + 0.2) / 4, abs=1e-6)


def test_route_takes_a_reward_of_zero_for_a_failure():
    """Tied votes and a hint: distilled, as nothing pleased."""
    terms = by_hand(Route(estimator=Sampled(gap_clip=None)), reward=[0.0], teacher=[[0.2, 0.6]])
    assert terms["dir"] == pytest.approx(-0.4, abs=1e-6)
    assert terms["eval"] == 0.0


@pytest.mark.parametrize("fusion", FUSIONS)
@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_each_term_is_linear_in_its_own_weight(fusion, estimator):
    """At ratio 1, where no clip chooses by the sum's sign."""
    rows = [dataclasses.replace(row, old=row.new) for row in MIXED]
    streams, _ = streams_of(rows)
    made = make(fusion, estimator, kl_coef=0.0)
    one, other = made(streams, Weights(1.0, 1.0)).terms, made(streams, Weights(3.0, 0.5)).terms
    assert float(other["eval"].detach()) == pytest.approx(3 * float(one["eval"].detach()), abs=1e-9)
    assert float(other["dir"].detach()) == pytest.approx(0.5 * float(one["dir"].detach()), abs=1e-9)
    assert float(one["dir"].detach()) != 0.0


def test_route_weighs_by_the_teachers_certainty():
    """Teacher (.5, .5) then (1, 0): H = ln 2, 0; exp(-H) = .5, 1; over their mean .75: 2/3, 4/3. Gaps 0 and ln 2."""
    logp = torch.tensor([[[0.5, 0.5], [0.5, 0.5]]]).log().requires_grad_()
    teacher = torch.tensor([[[0.5, 0.5], [1.0, 0.0]]]).log()
    mask = torch.ones(1, 2, dtype=torch.bool)
    streams = make_streams(
        logp[:, :, 0],
        mask,
        logp_teacher_BT=teacher[:, :, 0],
        vocabulary=DenseVocabulary(logp, teacher, mask),
    )
    made = Route(estimator=Sampled(gap_clip=None), entropy_beta=1.0, kl_coef=0.0)
    assert made.needs.vocabulary
    loss = made(streams, Weights(1.0, 1.0)).loss.detach()
    assert float(loss) == pytest.approx(-(4 / 3) * math.log(2) / 2, abs=1e-6)


@pytest.mark.parametrize("beta", [0.5, 3.0, 500.0])
def test_certainty_has_mean_one_over_a_rows_taught_tokens(beta):
    """Gaps of 1 everywhere, so the mean weight is the loss; also where exp(-beta H) is next to nothing. Row 0 has two
    tokens, of H = ln 2 and H < ln 2; both of row 1 have H = ln 2; row 2 has no teacher.
    """
    teacher = torch.tensor(
        [[[0.5, 0.5], [0.9, 0.1]], [[0.5, 0.5], [0.5, 0.5]], [[NAN, NAN], [NAN, NAN]]]
    ).log()
    old = (teacher[:, :, 0] - 1).nan_to_num(-1.0)
    logp = teacher.detach().clone()
    mask = torch.ones(3, 2, dtype=torch.bool)
    taught = mask & torch.tensor([[True], [True], [False]])
    streams = make_streams(
        old, mask, logp_teacher_BT=teacher[:, :, 0], vocabulary=DenseVocabulary(logp, teacher, taught)
    )
    fusion = Route(estimator=Sampled(gap_clip=None), entropy_beta=beta, kl_coef=0.0)
    assert float(fusion(streams, Weights(1.0, 1.0)).loss) == pytest.approx(-2 / 3, abs=1e-5)


def test_topk_clips_each_loss_by_itself():
    """rho 1.5. A_eval = -1 is not clipped from above: +1.5; gap .5 is: -1.28 * .5. Their sum, -.5, would not
    be: +.75.
    """
    old = torch.full((1, 2), math.log(0.4))
    given = {"reward": [-1.0], "teacher": [[0.5, 0.5]], "old": old, "new": old + math.log(1.5)}
    apart = by_hand(TopK(estimator=Sampled(gap_clip=None), kl_coef=0.0), **given)
    assert apart["eval"] == pytest.approx(1.5, abs=1e-6)
    assert apart["dir"] == pytest.approx(-1.28 * 0.5, abs=1e-6)
    summed = by_hand(AdvantageSum(estimator=Sampled(gap_clip=None), kl_coef=0.0), **given)
    assert summed["eval"] + summed["dir"] == pytest.approx(0.75, abs=1e-6)


@pytest.mark.parametrize("fusion", [AdvantageSum, LossSum, TopK, Route])
def test_clip_cap_and_kl_are_the_ones_that_were_asked_for(fusion):
    """One token, A = -1, pi_old .1. New .5: rho 5, so +5, or 3 with c = 3. New .074: rho .74: .8 on the paper's
    interval, .74 on [.72, 1.2]. Sampled at .02: w_is 5, at most the cap. KL, reference twice as likely: d = ln 2.
    """
    unit = torch.ones(1, 1, dtype=torch.bool)

    def terms(new, *, behaviour=0.1, **given):
        logp = {name: torch.tensor([[p]]).log() for name, p in (("new", new), ("behaviour", behaviour))}
        streams = make_streams(
            logp["new"], unit, reward_B=torch.tensor([-1.0]), logp_old_BT=torch.tensor([[0.1]]).log(),
            logp_behaviour_BT=logp["behaviour"], logp_ref_BT=logp["new"] + math.log(2),
        )  # fmt: skip
        made = fusion(estimator=Sampled(), **given)(streams, Weights(1.0, 1.0))
        return {name: float(term) for name, term in made.terms.items()}

    assert terms(0.5)["eval"] == pytest.approx(5.0, abs=1e-6)
    assert terms(0.5, dual_clip=3.0)["eval"] == pytest.approx(3.0, abs=1e-6)
    assert terms(0.074)["eval"] == pytest.approx(0.8, abs=1e-6)
    assert terms(0.074, clip="mirrored")["eval"] == pytest.approx(0.74, abs=1e-6)
    assert terms(0.074, eps_low=0.25)["eval"] == pytest.approx(0.75, abs=1e-6)
    assert terms(0.1, behaviour=0.02)["eval"] == pytest.approx(2.0, abs=1e-6)
    assert terms(0.1, behaviour=0.02, importance_cap=7.0)["eval"] == pytest.approx(5.0, abs=1e-6)
    d = math.log(2)
    for kind, value in (("k1", -d), ("k2", d * d / 2), ("k3", 1 - d)):
        assert terms(0.1, kl=kind, kl_coef=0.5)["kl"] == pytest.approx(0.5 * value, abs=1e-6)


def test_dual_clip_by_hand():
    """rho 5, A -1: 5 without, 3 with c = 3, and no gradient; A +1 is clipped at 1.28 either way."""
    rho = torch.tensor([[5.0, 5.0]], requires_grad=True)
    adv = torch.tensor([[-1.0, 1.0]])
    assert clipped_surrogate(rho, adv).tolist() == [[5.0, pytest.approx(-1.28)]]
    dual = clipped_surrogate(rho, adv, dual_clip=3.0)
    assert dual.tolist() == [[3.0, pytest.approx(-1.28)]]
    (grad,) = torch.autograd.grad(dual.sum(), rho)
    assert grad.tolist() == [[0.0, 0.0]]
    with pytest.raises(ValueError, match="dual_clip"):
        clipped_surrogate(rho, adv, dual_clip=0.5)
