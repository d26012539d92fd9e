"""Divergences by hand over three outcomes: p = (.5, .25, .25), q = (.25, .25, .5)."""

from __future__ import annotations

import math

import pytest
import torch

from stereorl.core import divergence, entropy, forward_kl, mean_gap, reverse_kl, with_tail

LN2 = math.log(2)
P = torch.tensor([[0.5, 0.25, 0.25]], dtype=torch.float64).log()
Q = torch.tensor([[0.25, 0.25, 0.5]], dtype=torch.float64).log()


def close(value, expected):
    assert value.tolist() == pytest.approx([expected], abs=1e-6)


def test_reverse_and_forward_kl_by_hand():
    """KL(p||q) = .5 ln 2 + 0 - .25 ln 2 = .25 ln 2; here the mirror image is as large."""
    close(reverse_kl(P, Q), 0.25 * LN2)
    close(forward_kl(P, Q), 0.25 * LN2)
    r = torch.tensor([[0.5, 0.5]], dtype=torch.float64).log()
    s = torch.tensor([[0.9, 0.1]], dtype=torch.float64).log()
    close(reverse_kl(r, s), 0.5 * math.log(0.5 / 0.9) + 0.5 * math.log(0.5 / 0.1))
    close(forward_kl(r, s), 0.9 * math.log(0.9 / 0.5) + 0.1 * math.log(0.1 / 0.5))


def test_generalised_jsd_by_hand():
    """alpha .5: m = (.375, .25, .375). alpha .25: m = .25 q + .75 p = (.4375, .25, .3125)."""
    half = 0.5 * (0.25 * math.log(0.25 / 0.375) + 0.5 * math.log(0.5 / 0.375))
    close(divergence(P, Q, alpha=0.5), 2 * half)
    to_q = 0.25 * math.log(0.25 / 0.4375) + 0.5 * math.log(0.5 / 0.3125)
    to_p = 0.5 * math.log(0.5 / 0.4375) + 0.25 * math.log(0.25 / 0.3125)
    close(divergence(P, Q, alpha=0.25), 0.25 * to_q + 0.75 * to_p)
    # alpha .3: m = .3 q + .7 p = (.425, .25, .325)
    to_q = 0.25 * math.log(0.25 / 0.425) + 0.5 * math.log(0.5 / 0.325)
    to_p = 0.5 * math.log(0.5 / 0.425) + 0.25 * math.log(0.25 / 0.325)
    close(divergence(P, Q, alpha=0.3), 0.3 * to_q + 0.7 * to_p)
    assert torch.equal(divergence(P, Q), reverse_kl(P, Q))  # unless told


def test_the_ends_of_alpha_are_the_two_kls_and_scaled_limits_between():
    assert torch.equal(divergence(P, Q, alpha=1.0), reverse_kl(P, Q))
    assert torch.equal(divergence(P, Q, alpha=0.0), forward_kl(P, Q))
    r = torch.tensor([[0.5, 0.5]], dtype=torch.float64).log()
    s = torch.tensor([[0.9, 0.1]], dtype=torch.float64).log()
    near_zero, near_one = divergence(r, s, alpha=1e-5) / 1e-5, divergence(r, s, alpha=1 - 1e-5) / 1e-5
    assert float(near_zero) == pytest.approx(float(forward_kl(r, s)), rel=1e-3)
    assert float(near_one) == pytest.approx(float(reverse_kl(r, s)), rel=1e-3)


@pytest.mark.parametrize("alpha", [0.0, 0.3, 0.5, 1.0])
def test_zero_at_equality_and_gradcheck(alpha):
    assert float(divergence(P, P, alpha=alpha)) == pytest.approx(0.0, abs=1e-12)
    logits = torch.randn(
        3, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0)
    ).requires_grad_()
    other = torch.randn(3, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1)).log_softmax(1)
    assert torch.autograd.gradcheck(lambda x: divergence(x.log_softmax(1), other, alpha=alpha), (logits,))


def test_the_gradient_of_the_reverse_kl_in_the_logits():
    """d KL / d z_v = p_v (log p_v - log q_v - KL)."""
    logits = P.clone().requires_grad_()
    kl = reverse_kl(logits.log_softmax(1), Q)
    (grad,) = torch.autograd.grad(kl.sum(), logits)
    expected = P.exp() * (P - Q - kl.detach()[:, None])
    torch.testing.assert_close(grad, expected, atol=1e-9, rtol=0)


def test_an_impossible_entry_adds_nothing_and_has_no_gradient():
    logp = torch.tensor([[math.log(0.5), math.log(0.5), -math.inf]], dtype=torch.float64, requires_grad=True)
    kl = reverse_kl(logp, Q)
    close(kl.detach(), 0.5 * math.log(0.5 / 0.25) + 0.5 * math.log(0.5 / 0.25))
    (grad,) = torch.autograd.grad(kl.sum(), logp)
    assert torch.isfinite(grad).all()
    assert float(grad[0, 2]) == 0.0


@pytest.mark.parametrize("alpha", [0.0, 0.3, 0.5, 1.0])
def test_entries_that_neither_side_has_change_nothing(alpha):
    """A vocabulary padded with what no model says, logits of -inf: value and gradient are those without it."""
    logits = torch.tensor([[0.1, 0.7, -0.4]], dtype=torch.float64, requires_grad=True)
    wide = torch.cat([logits, torch.full((1, 2), -math.inf, dtype=torch.float64)], dim=1)
    q = torch.cat([Q, torch.full((1, 2), -math.inf, dtype=torch.float64)], dim=1)
    plain = divergence(logits.log_softmax(1), Q, alpha=alpha)
    padded = divergence(wide.log_softmax(1), q, alpha=alpha)
    close(padded.detach(), float(plain.detach()))
    (wanted,), (got,) = (torch.autograd.grad(value.sum(), logits) for value in (plain, padded))
    torch.testing.assert_close(got, wanted, atol=1e-12, rtol=0)


def test_where_one_side_alone_is_impossible():
    """p = (1, 0), q = (.5, .5): KL(p||q) = ln 2, KL(q||p) = inf; alpha .5: m = (.75, .25), both finite."""
    p, q = torch.tensor([[1.0, 0.0]]).double().log(), torch.tensor([[0.5, 0.5]]).double().log()
    close(divergence(p, q, alpha=1.0), LN2)
    assert float(divergence(p, q, alpha=0.0)) == math.inf
    to_q = 0.5 * math.log(0.5 / 0.75) + 0.5 * math.log(0.5 / 0.25)
    close(divergence(p, q, alpha=0.5), 0.5 * to_q + 0.5 * math.log(1 / 0.75))


def test_entropy_by_hand():
    """.5 ln 2 + 2 * .25 * ln 4 = 1.5 ln 2; a certain outcome has none, an impossible one adds none."""
    close(entropy(P), 1.5 * LN2)
    certain = torch.tensor([[1.0, 0.0]], dtype=torch.float64).log()
    close(entropy(certain), 0.0)
    close(entropy(torch.tensor([[0.5, 0.5, 0.0]], dtype=torch.float64).log()), LN2)


def test_gradcheck_of_the_others():
    """Also through the tail and where a mask drops an entry; the clipped gap away from its corners."""
    logits, other = P.clone().requires_grad_(), Q
    mask = torch.tensor([[True, False]])
    for function in (
        lambda x: entropy(x.log_softmax(1)),
        lambda x: mean_gap(x.log_softmax(1), other),
        lambda x: mean_gap(x.log_softmax(1), other, clip=0.5),
        lambda x: with_tail(x.log_softmax(1)[:, :2]),
        lambda x: with_tail(x.log_softmax(1)[:, :2], mask)[:, [0, 2]],
        lambda x: reverse_kl(other, x.log_softmax(1)),
        lambda x: forward_kl(x.log_softmax(1), other),
    ):
        assert torch.autograd.gradcheck(function, (logits,))


def test_mean_gap_by_hand():
    """Gaps log q - log p are (-ln 2, 0, ln 2): mean .25 ln 2 - .5 ln 2; clipped at .5: (-.5, 0, .5)."""
    close(mean_gap(P, Q), -0.25 * LN2)
    close(mean_gap(P, Q), -float(reverse_kl(P, Q)))
    close(mean_gap(P, Q, clip=0.5), 0.5 * -0.5 + 0.25 * 0.5)
    with pytest.raises(ValueError, match="positive"):
        mean_gap(P, Q, clip=0.0)


def test_the_tail_by_hand():
    """Of p the first two are known: the rest is .25. With the second masked it is .5."""
    assert with_tail(P[:, :2])[0].exp().tolist() == pytest.approx([0.5, 0.25, 0.25], abs=1e-6)
    masked = with_tail(P[:, :2], torch.tensor([[True, False]]))
    assert masked[0].exp().tolist() == pytest.approx([0.5, 0.0, 0.5], abs=1e-6)
    assert float(with_tail(P)[0, -1]) == pytest.approx(math.log(1e-7), abs=1e-6)  # nothing is left
    with pytest.raises(ValueError, match="mask_K"):
        with_tail(P, torch.ones(1, 2, dtype=torch.bool))


def test_leading_dimensions_are_kept():
    """[B, T, V] is the same as each token by itself; so is a lone [V]."""
    generator = torch.Generator().manual_seed(0)
    p, q = (torch.randn(2, 3, 4, dtype=torch.float64, generator=generator).log_softmax(-1) for _ in range(2))
    mask = torch.rand(2, 3, 4, generator=generator) < 0.7
    for function in (
        reverse_kl,
        forward_kl,
        lambda a, b: divergence(a, b, alpha=0.3),
        lambda a, b: mean_gap(a, b, clip=0.5),
        lambda a, _: entropy(a),
    ):
        whole = function(p, q)
        assert whole.shape == (2, 3)
        torch.testing.assert_close(whole[1, 2], function(p[1, 2], q[1, 2]))
    tailed = with_tail(p[..., :3], mask[..., :3])
    assert tailed.shape == (2, 3, 4)
    torch.testing.assert_close(tailed[1, 2], with_tail(p[1, 2, :3], mask[1, 2, :3]))
    torch.testing.assert_close(tailed.exp().sum(-1), torch.ones(2, 3, dtype=torch.float64))


def test_shapes_are_refused_by_name():
    with pytest.raises(ValueError, match="both must be"):
        reverse_kl(P, Q[:, :2])
    with pytest.raises(ValueError, match="alpha"):
        divergence(P, Q, alpha=1.5)
