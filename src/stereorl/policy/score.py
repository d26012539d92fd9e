"""Log-probs of given response ids under a model: the path of trainer, teacher and the engine's check.

Ids go in as they were sampled (invariant 1). The first response token is scored from the last prompt
position, and the last response token is never an input. Rows are padded on the right and masked, so a row's
result does not depend on the rows beside it.
"""

# ruff: noqa: N815 - shapes live in names

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from stereorl.policy.engine import Scores
from stereorl.policy.head import CHUNK, Head, head_of

Ids = Sequence[int] | np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True, eq=False)
class Positions:
    """Where a model predicts the tokens of given responses: one forward pass, read in several ways.

    N counts the response tokens of all rows in order, B rows, R the longest response. `mask_BR` (bool) says where the N
    values belong. All log-probs are float32, at each row's temperature, over the untruncated vocabulary; gradients flow
    to the hidden states and to a trained head.
    """

    head: Head
    hidden_NH: Tensor
    ids_N: Tensor
    temperature_N: Tensor
    mask_BR: Tensor

    @classmethod
    def of(
        cls,
        model: Any,
        prompts: Sequence[Ids],
        responses: Sequence[Ids],
        *,
        temperature: float | Sequence[float] | Tensor,
    ) -> Positions:
        """One forward pass. Raises ValueError on an empty prompt, on rows that do not pair up, or on a temperature that
        is not above 0.
        """
        head = head_of(model)
        hidden_NH, ids_N, mask_BR = _response_hidden(head, prompts, responses)
        temperature_B = _temperatures(temperature, len(prompts), hidden_NH.device)
        temperature_N = temperature_B[:, None].expand(mask_BR.shape)[mask_BR]
        return cls(head, hidden_NH, ids_N, temperature_N, mask_BR)

    def frozen(self) -> Positions:
        """The same, with the head as it is at this moment: for weights that are only borrowed."""
        return replace(self, head=self.head.frozen(), hidden_NH=self.hidden_NH.detach())

    @property
    def vocabulary(self) -> int:
        """V, how many ids the head scores."""
        return int(self.head.linear.weight.shape[0])

    def rows(self, rows: Sequence[int]) -> Positions:
        """Only those rows, in that order of theirs in the batch (ascending)."""
        keep_B1 = torch.zeros(len(self.mask_BR), 1, dtype=torch.bool, device=self.mask_BR.device)
        keep_B1[list(rows)] = True
        keep_N = keep_B1.expand(self.mask_BR.shape)[self.mask_BR]
        mask_BR = self.mask_BR[sorted(rows)]
        width = int(mask_BR.sum(1).max()) if len(rows) else 0
        return replace(
            self,
            hidden_NH=self.hidden_NH[keep_N],
            ids_N=self.ids_N[keep_N],
            temperature_N=self.temperature_N[keep_N],
            mask_BR=mask_BR[:, :width],
        )

    def log_probs(self, *, chunk: int = CHUNK) -> Tensor:
        """log pi of the response ids [B, R], 0 where masked."""
        return self.by_row(self.head.log_probs(self.hidden_NH, self.ids_N, self.temperature_N, chunk=chunk))

    def log_probs_at(self, ids_NK: Tensor) -> Tensor:
        """log pi of K given ids at each position [N, K]."""
        return self.head.log_probs_at(self.hidden_NH, ids_NK, self.temperature_N)

    @torch.no_grad()
    def top(self, k: int) -> tuple[Tensor, Tensor]:
        """The K likeliest ids at each position, best first, and their log-probs: [N, K] each (K <= V)."""
        parts = [
            (logits_nV / t_n[:, None]).log_softmax(1).topk(min(k, logits_nV.shape[1]), dim=1)
            for logits_nV, t_n in self.head.chunks(self.hidden_NH, self.temperature_N)
        ]
        if not parts:
            empty = self.hidden_NH.new_zeros(0, k)
            return empty.long(), empty.float()
        return torch.cat([p.indices for p in parts]), torch.cat([p.values for p in parts])

    def map(self, function: Callable[[Tensor, Tensor], Tensor], other: Positions) -> Tensor:
        """`function(logp_nV, other's logp_nV) -> [n]`, any value of each token's own two distributions: [N].

        A chunk of tokens at a time, so that [N, V] is never held; gradients flow to this side only.
        """
        return self.head.map(function, self.hidden_NH, self.temperature_N, other.head, other.hidden_NH)

    def by_row(self, value_N: Tensor, fill: float = 0.0) -> Tensor:
        """[N] -> [B, R], or [N, K] -> [B, R, K], with `fill` where masked."""
        mask = self.mask_BR if value_N.dim() == 1 else self.mask_BR[:, :, None]
        shape = (*self.mask_BR.shape, *value_N.shape[1:])
        out = torch.full(shape, fill, device=value_N.device, dtype=value_N.dtype)
        return out.masked_scatter(mask, value_N)

    @torch.no_grad()
    def scores(self, top_k: int = 0) -> list[Scores]:
        """Per row its log-probs and, for `top_k` > 0, its K likeliest ids, as arrays."""
        lengths = self.mask_BR.sum(1).tolist()
        own_N = self.head.log_probs(self.hidden_NH, self.ids_N, self.temperature_N)
        own = torch.split_with_sizes(own_N, lengths)
        if top_k <= 0:
            return [Scores(_numpy(row)) for row in own]
        ids, logp = (torch.split_with_sizes(part, lengths) for part in self.top(top_k))
        return [
            Scores(_numpy(row), ids_RK.cpu().numpy().astype(np.int32), _numpy(logp_RK))
            for row, ids_RK, logp_RK in zip(own, ids, logp, strict=True)
        ]


def response_log_probs(
    model: Any,
    prompts: Sequence[Ids],
    responses: Sequence[Ids],
    *,
    temperature: float | Sequence[float] | Tensor,
    chunk: int = CHUNK,
) -> tuple[Tensor, Tensor]:
    """log pi(response[t] | prompt, response[:t]) at each row's temperature, with gradient.

    Returns `logp_BR` float32 (0 where masked) and `mask_BR` bool. Raises as `Positions.of`.
    """
    positions = Positions.of(model, prompts, responses, temperature=temperature)
    return positions.log_probs(chunk=chunk), positions.mask_BR


def score(model: Any, prompt_ids: Ids, response_ids: Ids, *, temperature: float, top_k: int = 0) -> Scores:
    """Log-probs of one response and, for `top_k` > 0, the K likeliest ids with theirs at each position."""
    with torch.no_grad():
        positions = Positions.of(model, [prompt_ids], [response_ids], temperature=temperature)
    return positions.scores(top_k)[0]


def _response_hidden(
    head: Head, prompts: Sequence[Ids], responses: Sequence[Ids]
) -> tuple[Tensor, Tensor, Tensor]:
    """Hidden states that predict the response tokens [N, H], those ids [N], and where they belong [B, R]."""
    if not prompts or len(prompts) != len(responses):
        raise ValueError(f"{len(prompts)} prompts and {len(responses)} responses: give one of each per row.")
    if any(len(prompt) == 0 for prompt in prompts):
        raise ValueError("A prompt is empty: the first response token has nothing to be scored from.")
    lengths = [max(len(p) + len(r) - 1, 1) for p, r in zip(prompts, responses, strict=True)]
    input_BL = np.zeros((len(prompts), max(lengths)), dtype=np.int64)
    used_BL = np.zeros(input_BL.shape, dtype=bool)
    mask_BR = np.zeros((len(prompts), max(len(r) for r in responses)), dtype=bool)
    for row, (prompt, response) in enumerate(zip(prompts, responses, strict=True)):
        both = np.concatenate([np.asarray(prompt, np.int64), np.asarray(response, np.int64)])
        input_BL[row, : lengths[row]] = both[: lengths[row]]
        used_BL[row, len(prompt) - 1 : len(both) - 1] = True
        mask_BR[row, : len(response)] = True
    device = head.device
    padded = len(set(lengths)) > 1
    attention = np.arange(input_BL.shape[1]) < np.array(lengths)[:, None]
    hidden_BLH = head.body(
        input_ids=torch.from_numpy(input_BL).to(device),
        attention_mask=torch.from_numpy(attention).to(device) if padded else None,
        use_cache=False,
    ).last_hidden_state
    ids_N = np.concatenate([np.asarray(response, np.int64) for response in responses])
    return (
        hidden_BLH[torch.from_numpy(used_BL).to(device)],
        torch.from_numpy(ids_N).to(device),
        torch.from_numpy(mask_BR).to(device),
    )


def _temperatures(temperature: float | Sequence[float] | Tensor, rows: int, device: torch.device) -> Tensor:
    temperature_B = torch.as_tensor(temperature, dtype=torch.float32, device=device).reshape(-1).expand(rows)
    if not bool((temperature_B > 0).all()):
        raise ValueError(
            "A temperature is not above 0; greedy replies are scored at 1 (Sampling.score_temperature)."
        )
    return temperature_B


def _numpy(tensor: Tensor) -> np.ndarray[Any, np.dtype[np.float32]]:
    return tensor.float().cpu().numpy()
