"""Drawing tokens: the right distribution, untruncated log-probs, and seeds that hold."""

from __future__ import annotations

import math

import pytest
import torch

from stereorl.data.turn import Sampling
from stereorl.errors import RequestError
from stereorl.policy.sampling import Draw, draw_tokens


def many(logits: list[float], sampling: Sampling, n: int = 4000) -> torch.Tensor:
    draws = [Draw.of(sampling) for _ in range(n)]
    ids, _ = draw_tokens(torch.tensor(logits).expand(n, -1), draws)
    return torch.bincount(ids, minlength=len(logits)) / n


def test_frequencies_follow_the_softmax_at_the_temperature() -> None:
    found = many([1.0, 0.0, -1.0], Sampling(temperature=0.5))
    expected = torch.softmax(torch.tensor([2.0, 0.0, -2.0]), 0)
    assert torch.allclose(found, expected, atol=0.03)


def test_log_prob_is_untruncated_and_at_the_temperature() -> None:
    logits = torch.tensor([[1.0, 0.5, 0.0, -1.0]])
    ids, logp = draw_tokens(logits, [Draw.of(Sampling(temperature=0.5, top_k=1))])
    assert ids.tolist() == [0]
    assert logp.item() == pytest.approx(torch.log_softmax(logits / 0.5, 1)[0, 0].item(), abs=1e-6)


def test_greedy_takes_the_maximum_and_stores_its_log_prob_at_one() -> None:
    logits = torch.tensor([[0.0, 3.0, 1.0]])
    ids, logp = draw_tokens(logits, [Draw.of(Sampling(temperature=0))])
    assert ids.tolist() == [1]
    assert logp.item() == pytest.approx(torch.log_softmax(logits, 1)[0, 1].item(), abs=1e-6)


def test_an_improbable_token_keeps_a_finite_log_prob() -> None:
    """log(softmax) would underflow to -inf here."""
    logits = torch.tensor([[0.0, -200.0]])
    draw = Draw.of(Sampling(temperature=1.0))
    draw.rng.random = lambda: 1.0 - 2**-53  # type: ignore[method-assign]
    _, logp = draw_tokens(logits, [draw])
    assert math.isfinite(logp.item())


@pytest.mark.parametrize(
    ("sampling", "kept"),
    [
        (Sampling(temperature=1.0, top_k=2), [0, 1]),
        (Sampling(temperature=1.0, top_p=0.5), [0]),
        (Sampling(temperature=1.0, top_p=0.6), [0, 1]),
        (Sampling(temperature=1.0, top_k=3, top_p=0.99), [0, 1, 2]),
        (Sampling(temperature=1.0, top_p=1e-9), [0]),
    ],
)
def test_truncation_keeps_exactly_the_nucleus(sampling: Sampling, kept: list[int]) -> None:
    """Probabilities 0.5, 0.25, 0.15, 0.1."""
    logits = [math.log(p) for p in (0.5, 0.25, 0.15, 0.1)]
    found = many(logits, sampling, 400)
    assert [i for i, share in enumerate(found.tolist()) if share > 0] == kept


def test_a_seed_fixes_a_reply_whoever_else_is_in_the_batch() -> None:
    logits = torch.zeros(3, 50)
    alone = draw_tokens(logits[:1], [Draw.of(Sampling(temperature=1.0, seed=7))])[0][0]
    others = [
        Draw.of(Sampling(temperature=0)),
        Draw.of(Sampling(temperature=1.0, seed=7)),
        Draw.of(Sampling(temperature=2.0)),
    ]
    assert draw_tokens(logits, others)[0][1] == alone


@pytest.mark.parametrize(
    "bad",
    [
        Sampling(temperature=-1),
        Sampling(temperature=math.nan),
        Sampling(temperature=math.inf),
        Sampling(top_p=0),
        Sampling(top_p=1.5),
        Sampling(top_k=-1),
        Sampling(max_tokens=0),
    ],
)
def test_senseless_values_are_refused_by_name(bad: Sampling) -> None:
    with pytest.raises(RequestError) as caught:
        Draw.of(bad)
    assert caught.value.param in ("temperature", "top_p", "top_k", "max_tokens")
