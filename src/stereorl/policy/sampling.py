"""Draw the next token of each request and give its log-prob as training needs it.

The log-prob is untruncated, at the request's temperature, whatever top-p and top-k cut away: a renormalised one would
make importance ratios lie. Greedy requests (temperature 0) store theirs at temperature 1.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass

import torch
from torch import Tensor

from stereorl.data.turn import Sampling
from stereorl.errors import RequestError


@dataclass(frozen=True, slots=True)
class Draw:
    """How one request samples, with its own source of randomness: its seed fixes its reply, not its neighbours'."""

    sampling: Sampling
    rng: random.Random

    @classmethod
    def of(cls, sampling: Sampling) -> Draw:
        """Raises RequestError when a sampling value makes no sense."""
        if not (math.isfinite(sampling.temperature) and sampling.temperature >= 0):
            raise RequestError("'temperature' must be a number >= 0.", param="temperature")
        if not 0 < sampling.top_p <= 1:
            raise RequestError("'top_p' must be above 0 and at most 1.", param="top_p")
        if sampling.top_k < 0:
            raise RequestError("'top_k' must be 0 (off) or more.", param="top_k")
        if sampling.max_tokens < 1:
            raise RequestError("'max_tokens' must be at least 1.", param="max_tokens")
        return cls(sampling, random.Random(sampling.seed))

    @classmethod
    def of_default(cls) -> Draw:
        return cls.of(Sampling())


def draw_tokens(logits_NV: Tensor, draws: list[Draw]) -> tuple[Tensor, Tensor]:
    """Token ids int64 [N] and their untruncated log-probs float32 [N], for float32 logits [N, V]."""
    temperature_N = torch.tensor([d.sampling.score_temperature for d in draws], device=logits_NV.device)
    scaled_NV = logits_NV / temperature_N[:, None]
    lse_N = scaled_NV.logsumexp(1)
    ids_N = torch.empty(len(draws), dtype=torch.int64, device=logits_NV.device)
    greedy = [row for row, d in enumerate(draws) if d.sampling.temperature == 0]
    random_rows = [row for row, d in enumerate(draws) if d.sampling.temperature > 0]
    if greedy:
        ids_N[greedy] = logits_NV[greedy].argmax(1)
    if random_rows:
        weights_NV = torch.exp(scaled_NV[random_rows] - lse_N[random_rows, None])
        for at, row in enumerate(random_rows):
            _truncate(weights_NV[at], draws[row].sampling)
        uniform_N = torch.tensor([draws[row].rng.random() for row in random_rows], dtype=torch.float64)
        ids_N[random_rows] = _invert(weights_NV, uniform_N.to(logits_NV.device))
    logp_N = scaled_NV.gather(1, ids_N[:, None]).squeeze(1) - lse_N
    return ids_N, logp_N.clamp_(max=0.0)


def _truncate(weights_V: Tensor, sampling: Sampling) -> None:
    """Zero, in place, what top-k and then top-p (of what top-k left) cut away; the likeliest always stays."""
    if 0 < sampling.top_k < len(weights_V):
        kept = weights_V.topk(sampling.top_k)
        weights_V.zero_().scatter_(0, kept.indices, kept.values)
    if sampling.top_p < 1:
        ordered, order = weights_V.sort(descending=True)
        before = ordered.cumsum(0, dtype=torch.float64) - ordered
        weights_V[order[before >= sampling.top_p * ordered.sum(dtype=torch.float64)]] = 0.0


def _invert(weights_NV: Tensor, uniform_N: Tensor) -> Tensor:
    """The token at which the running sum of the weights passes `uniform` of their total. Float64: the sum is long."""
    running_NV = weights_NV.cumsum(1, dtype=torch.float64)
    target_N1 = uniform_N[:, None] * running_NV[:, -1:]
    return (
        torch.searchsorted(running_NV, target_N1, right=True).squeeze(1).clamp_(max=weights_NV.shape[1] - 1)
    )
