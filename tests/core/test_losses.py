"""Golden numbers by hand, identities and gradients of surrogate, KL, importance weight and aggregation."""

from __future__ import annotations

import math

import pytest
import torch

from stereorl.core import (
    aggregate,
    clip_active,
    clipped_surrogate,
    importance_weight,
    kl_estimate,
    ratio,
    token_weights,
    weighted_sum,
)

RHO = torch.tensor([[0.5, 1.0, 1.25, 2.0]])
ONES = torch.ones(1, 4)


def close(actual, expected, atol=1e-6):
    torch.testing.assert_close(actual, torch.tensor(expected, dtype=actual.dtype), rtol=0, atol=atol)


def test_surrogate_of_the_paper_clips_both_signs_to_one_interval():
    # A = +1: -min(rho, clip(rho, .8, 1.28));  A = -1: max(rho, clip(rho, .8, 1.28))
    close(clipped_surrogate(RHO, ONES), [[-0.5, -1.0, -1.25, -1.28]])
    close(clipped_surrogate(RHO, -ONES), [[0.8, 1.0, 1.25, 2.0]])
    close(clipped_surrogate(RHO, 2 * ONES), [[-1.0, -2.0, -2.5, -2.56]])


def test_mirrored_interval_for_negative_advantages():
    # A = -1: max(rho, clip(rho, .72, 1.2))
    close(clipped_surrogate(RHO, -ONES, clip="mirrored"), [[0.72, 1.0, 1.25, 2.0]])
    assert torch.equal(clipped_surrogate(RHO, ONES, clip="mirrored"), clipped_surrogate(RHO, ONES))


def test_mirrored_equals_paper_when_the_interval_is_symmetric():
    advantage = torch.tensor([[-1.0, 1.0, -0.5, 2.0]])
    symmetric = {"eps_low": 0.2, "eps_high": 0.2}
    assert torch.equal(
        clipped_surrogate(RHO, advantage, clip="mirrored", **symmetric),
        clipped_surrogate(RHO, advantage, clip="paper", **symmetric),
    )


def test_clip_active_marks_tokens_without_gradient():
    assert clip_active(RHO, ONES).tolist() == [[False, False, False, True]]
    assert clip_active(RHO, -ONES).tolist() == [[True, False, False, False]]
    assert clip_active(RHO, 0 * ONES).tolist() == [[False] * 4]
    for advantage in (ONES, -ONES):
        rho = RHO.clone().requires_grad_()
        (grad,) = torch.autograd.grad(clipped_surrogate(rho, advantage).sum(), rho)
        assert torch.equal(grad == 0, clip_active(RHO, advantage))


def test_ratio_one_gives_gradient_minus_advantage():
    logp = torch.tensor([[-0.3, -2.0, -7.0]], requires_grad=True)
    advantage = torch.tensor([[1.0, -0.5, 3.0]])
    rho = ratio(logp, logp.detach())
    assert torch.equal(rho, torch.ones(1, 3))
    (grad,) = torch.autograd.grad(clipped_surrogate(rho, advantage).sum(), logp)
    close(grad, [[-1.0, 0.5, -3.0]])


def test_ratio_by_hand_and_bounded():
    new, old = torch.tensor([[0.2, 0.1, 1.0]]).log(), torch.tensor([[0.1, 0.4, 1.0]]).log()
    old[0, 2] = -500.0
    close(ratio(new, old)[:, :2], [[2.0, 0.25]])
    assert math.isfinite(float(ratio(new, old)[0, 2]))


def test_importance_weight_by_hand():
    old, behaviour = torch.tensor([[0.2, 0.4, 0.3, 1.0]]).log(), torch.tensor([[0.4, 0.1, 0.3, 1.0]]).log()
    behaviour[0, 3] = float("nan")
    mask = torch.tensor([[True, True, True, False]])
    close(importance_weight(old, behaviour, mask, cap=2.0), [[0.5, 2.0, 1.0, 1.0]])
    close(importance_weight(old, behaviour, mask, cap=10.0), [[0.5, 4.0, 1.0, 1.0]])
    assert not importance_weight(old.requires_grad_(), behaviour, mask).requires_grad


def test_kl_by_hand():
    # p_ref / p_new = 2: d = ln 2; k1 = -ln 2; k2 = (ln 2)^2 / 2; k3 = 2 - 1 - ln 2
    new, ref = torch.tensor([[0.25]]).log(), torch.tensor([[0.5]]).log()
    d = math.log(2)
    close(kl_estimate(new, ref, kind="k1"), [[-d]])
    close(kl_estimate(new, ref, kind="k2"), [[d * d / 2]])
    close(kl_estimate(new, ref, kind="k3"), [[1 - d]])


def test_k3_is_clamped_with_a_finite_gradient():
    new = torch.tensor([[-200.0, -5.0]], requires_grad=True)
    value = kl_estimate(new, torch.zeros(1, 2), kind="k3")
    close(value.detach(), [[10.0, 10.0]])
    (grad,) = torch.autograd.grad(value.sum(), new)
    assert torch.isfinite(grad).all()


@pytest.mark.parametrize("kind", ["k1", "k2", "k3"])
def test_no_gradient_reaches_the_reference(kind):
    new, ref = (torch.tensor([[p]]).log().requires_grad_() for p in (0.25, 0.5))
    grads = torch.autograd.grad(kl_estimate(new, ref, kind=kind).sum(), (new, ref), allow_unused=True)
    # d = ln 2; by log pi_new: k1: 1; k2: -d; k3: -exp(d) + 1 = -1
    close(grads[0], [[{"k1": 1.0, "k2": -math.log(2), "k3": -1.0}[kind]]])
    assert grads[1] is None


@pytest.mark.parametrize("kind", ["k1", "k2", "k3"])
def test_kl_is_zero_at_the_reference(kind):
    logp = torch.tensor([[-0.1, -3.0]])
    assert torch.equal(kl_estimate(logp, logp, kind=kind), torch.zeros(1, 2))


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


def test_aggregations_by_hand():
    value = torch.tensor([[1.0, 2.0, 3.0], [10.0, float("nan"), float("inf")]])
    mask = torch.tensor([[True, True, True], [True, False, False]])
    close(aggregate(value, mask, mode="token_mean"), (1 + 2 + 3 + 10) / 4)
    close(aggregate(value, mask, mode="seq_mean_token_mean"), ((1 + 2 + 3) / 3 + 10) / 2)
    close(aggregate(value, mask), 6.0)  # unless told
    alone = torch.tensor([[False, False, False], [True, False, False]])
    for mode in ("token_mean", "seq_mean_token_mean"):
        close(aggregate(value, alone, mode=mode), 10.0)


@pytest.mark.parametrize("mode", ["token_mean", "seq_mean_token_mean"])
def test_aggregation_counts_trained_rows_only_and_is_defined_at_none(mode):
    value = torch.tensor([[4.0, 6.0], [100.0, 100.0]], requires_grad=True)
    mask = torch.tensor([[True, True], [False, False]])
    close(aggregate(value, mask, mode=mode).detach(), 5.0)
    empty = aggregate(value, torch.zeros_like(mask), mode=mode)
    (grad,) = torch.autograd.grad(empty, value)
    assert float(empty.detach()) == 0.0
    assert torch.equal(grad, torch.zeros(2, 2))


def test_both_aggregations_agree_on_rows_of_equal_length():
    value, mask = torch.randn(3, 4), torch.ones(3, 4, dtype=torch.bool)
    torch.testing.assert_close(aggregate(value, mask, mode="token_mean"), aggregate(value, mask))


def test_weights_sum_to_one_and_cut_into_micro_batches():
    mask = torch.tensor([[True, True, False], [True, False, False], [True, True, True]])
    value = torch.randn(3, 3)
    for mode in ("token_mean", "seq_mean_token_mean"):
        weight = token_weights(mask, mode=mode)
        close(weight.sum(), 1.0)
        parts = sum(weighted_sum(value[i : i + 1], weight[i : i + 1]) for i in range(3))
        torch.testing.assert_close(parts, aggregate(value, mask, mode=mode))


def test_bad_input_is_refused_by_name():
    with pytest.raises(ValueError, match="advantage_BT"):
        clipped_surrogate(RHO, torch.ones(1, 3))
    with pytest.raises(ValueError, match="eps_low"):
        clipped_surrogate(RHO, ONES, eps_low=1.0)
    with pytest.raises(ValueError, match="clip"):
        clipped_surrogate(RHO, ONES, clip="both")
    with pytest.raises(ValueError, match="logp_ref_BT"):
        kl_estimate(RHO, torch.ones(2, 4))
    with pytest.raises(ValueError, match="kind"):
        kl_estimate(RHO, RHO, kind="k4")
    with pytest.raises(ValueError, match="cap"):
        importance_weight(RHO, RHO, RHO > 0, cap=0.0)
    with pytest.raises(ValueError, match="boolean"):
        token_weights(RHO, mode="token_mean")
    with pytest.raises(ValueError, match="mode"):
        token_weights(RHO > 0, mode="sum")
    with pytest.raises(ValueError, match=r"\[B, T\]"):
        ratio(torch.zeros(3), torch.zeros(3))


def test_gradcheck():
    generator = torch.Generator().manual_seed(3)
    new = -torch.rand(2, 3, generator=generator, dtype=torch.float64) - 0.1
    old = new + 0.05 * torch.randn(2, 3, generator=generator, dtype=torch.float64)
    advantage = torch.randn(2, 3, generator=generator, dtype=torch.float64)
    mask = torch.tensor([[True, True, False], [True, True, True]])
    new.requires_grad_()
    for clip in ("paper", "mirrored"):
        assert torch.autograd.gradcheck(
            lambda x, c=clip: aggregate(clipped_surrogate(ratio(x, old), advantage, clip=c), mask), (new,)
        )
    for kind in ("k1", "k2", "k3"):
        assert torch.autograd.gradcheck(
            lambda x, k=kind: aggregate(kl_estimate(x, old, kind=k), mask), (new,)
        )
