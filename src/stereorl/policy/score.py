"""Log-probs of given response ids under a model: the path of trainer, teacher and the engine's check.

Ids go in as they were sampled (invariant 1). The first response token is scored from the last prompt
position, and the last response token is never an input. Rows are padded on the right and masked, so a row's
result does not depend on the rows beside it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from stereorl.policy.engine import Scores
from stereorl.policy.head import CHUNK, Head, head_of

Ids = Sequence[int] | np.ndarray[Any, Any]


def response_log_probs(
    model: Any,
    prompts: Sequence[Ids],
    responses: Sequence[Ids],
    *,
    temperature: float | Sequence[float] | Tensor,
    chunk: int = CHUNK,
) -> tuple[Tensor, Tensor]:
    """log pi(response[t] | prompt, response[:t]) at each row's temperature, with gradient.

    Returns `logp_BR` float32 (0 where masked) and `mask_BR` bool. Raises ValueError on an empty prompt, on
    rows that do not pair up, or on a temperature that is not above 0.
    """
    head = head_of(model)
    hidden_NH, ids_N, mask_BR = _response_hidden(head, prompts, responses)
    temperature_B = _temperatures(temperature, len(prompts), hidden_NH.device)
    temperature_N = temperature_B[:, None].expand(mask_BR.shape)[mask_BR]
    logp_N = head.log_probs(hidden_NH, ids_N, temperature_N, chunk=chunk)
    logp_BR = torch.zeros(mask_BR.shape, device=logp_N.device).masked_scatter(mask_BR, logp_N)
    return logp_BR, mask_BR


@torch.no_grad()
def score(model: Any, prompt_ids: Ids, response_ids: Ids, *, temperature: float, top_k: int = 0) -> Scores:
    """Log-probs of one response and, for `top_k` > 0, the K likeliest ids with theirs at each position."""
    head = head_of(model)
    hidden_NH, ids_N, _ = _response_hidden(head, [prompt_ids], [response_ids])
    temperature_N = _temperatures(temperature, 1, hidden_NH.device).expand(len(ids_N))
    if top_k <= 0:
        return Scores(_numpy(head.log_probs(hidden_NH, ids_N, temperature_N)))
    parts: list[tuple[Tensor, Tensor, Tensor]] = []
    for at in range(0, max(len(ids_N), 1), CHUNK):
        logp = torch.log_softmax(head.logits(hidden_NH[at : at + CHUNK]) / temperature, dim=1)
        best = logp.topk(min(top_k, logp.shape[1]), dim=1)
        own = logp.gather(1, ids_N[at : at + CHUNK, None]).squeeze(1)
        parts.append((own, best.indices, best.values))
    logp_N, top_ids, top_logp = (torch.cat(part) for part in zip(*parts, strict=True))
    return Scores(_numpy(logp_N), top_ids.cpu().numpy().astype(np.int32), _numpy(top_logp))


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
