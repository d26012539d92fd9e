"""What the policy must not forget: the base model's own replies to prompts that have nothing to do with training."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import torch

from stereorl.data import Message
from stereorl.data.turn import IntArray
from stereorl.errors import ConfigError
from stereorl.policy.adapters import reference
from stereorl.policy.load import Loaded
from stereorl.policy.quiet import quiet
from stereorl.policy.render import Renderer
from stereorl.policy.score import response_log_probs

REPLY_TOKENS = 48


class Retention:
    """Pairs of prompt and base reply, and the mean log-prob per token that the base gives to them."""

    def __init__(self, model: Any, prompts: Sequence[IntArray], replies: Sequence[IntArray]):
        self._model = model
        self._prompts = list(prompts)
        self._replies = list(replies)
        with reference(model):
            self.base = self._mean_log_prob()

    def drop(self) -> float:
        """Nats per token that the weights in force lost on the base's replies; negative: they gained."""
        return self.base - self._mean_log_prob()

    @torch.no_grad()
    def _mean_log_prob(self) -> float:
        logp, mask = response_log_probs(self._model, self._prompts, self._replies, temperature=1.0)
        return float(logp[mask].mean())


def load_retention(model: Any, loaded: Loaded, *, prompts: Sequence[str], cache: Path) -> Retention | None:
    """Retention over `prompts`, None when there are none.

    The base's greedy replies are generated once and kept in `cache`, a folder, under the model's digest.
    """
    if not prompts:
        return None
    renderer = Renderer(loaded.tokenizer, loaded.context_length, loaded.eos_ids)
    ids = [renderer.encode([Message("user", text)]) for text in prompts]
    file = cache / f"retention-{loaded.digest[:12]}-{len(prompts)}.json"
    replies = _cached(file, ids)
    if replies is None:
        replies = greedy_replies(model, ids, loaded)
        _keep(file, ids, replies)
    return Retention(model, _arrays(ids), _arrays(replies))


def fixed_prompts(n: int) -> list[str]:
    """The first `n` prompts of `retention_prompts.txt`, one a line. ConfigError when there are fewer."""
    text = (resources.files("stereorl.learn") / "retention_prompts.txt").read_text(encoding="utf-8")
    lines = [line for line in text.splitlines() if line.strip()]
    if n > len(lines):
        raise ConfigError(f"gate.retention_prompts: there are {len(lines)} such prompts, not {n}.")
    return lines[:n]


@torch.no_grad()
def greedy_replies(model: Any, prompts: Sequence[Sequence[int]], loaded: Loaded) -> list[list[int]]:
    """The base's most likely replies of at most REPLY_TOKENS tokens, end token included."""
    pad, width = min(loaded.eos_ids, default=0), max(map(len, prompts))
    rows = [[pad] * (width - len(p)) + list(p) for p in prompts]
    mask = [[0] * (width - len(p)) + [1] * len(p) for p in prompts]
    with reference(model), quiet():
        output = model.generate(
            input_ids=torch.tensor(rows, device=loaded.device),
            attention_mask=torch.tensor(mask, device=loaded.device),
            do_sample=False,
            max_new_tokens=REPLY_TOKENS,
            pad_token_id=pad,
            eos_token_id=sorted(loaded.eos_ids) or None,
        )
    return [_until_end(row, loaded.eos_ids) for row in output[:, width:].tolist()]


def _until_end(ids: list[int], ends: frozenset[int]) -> list[int]:
    stop = next((i for i, token in enumerate(ids) if token in ends), len(ids) - 1)
    return ids[: stop + 1]


def _arrays(rows: Sequence[Sequence[int]]) -> list[IntArray]:
    return [np.asarray(row, dtype=np.int32) for row in rows]


def _cached(file: Path, prompts: list[list[int]]) -> list[list[int]] | None:
    """The replies kept in `file` if they answer just these prompts."""
    try:
        kept = json.loads(file.read_text(encoding="utf-8"))
        replies: list[list[int]] = kept["replies"]
        return replies if kept["prompts"] == prompts and len(replies) == len(prompts) else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _keep(file: Path, prompts: list[list[int]], replies: list[list[int]]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    aside = file.with_name(f".{file.name}.{os.getpid()}")
    aside.write_text(json.dumps({"prompts": prompts, "replies": replies}), encoding="utf-8")
    aside.replace(file)
