"""The frozen base behind a fixed prompt of examples: the prompt is read once and kept, each case costs its own tokens.

What is kept is the KV cache of the examples, copied for every case. It belongs to the base weights, which never
change, so neither a training step nor a rollback makes it stale.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from contextlib import AbstractContextManager
from itertools import takewhile
from typing import Any

import torch
from torch import Tensor

from stereorl.data import Message
from stereorl.policy.adapters import reference
from stereorl.policy.head import Head, head_of
from stereorl.policy.load import Loaded
from stereorl.policy.render import Renderer

Lock = AbstractContextManager[Any]  # a threading.RLock, say: what holds the model's weights still


class Primed:
    """`examples`: the messages before every case. `keep`: hold on to their cache (some tens of MB for a small model).

    `lock` is held whenever weights are used. Nothing is read before the first case comes.
    """

    def __init__(
        self, model: Any, loaded: Loaded, examples: Sequence[Message], lock: Lock, *, keep: bool = True
    ):
        self._model = model
        self._tokenizer = loaded.tokenizer
        self._renderer = Renderer(loaded.tokenizer, loaded.context_length, loaded.eos_ids)
        self._examples = tuple(examples)
        self._lock = lock
        self._keep = keep
        self.context_length = loaded.context_length
        self._prefix: list[int] | None = None
        self._cache: Any = None

    def ids(self, case: Message, start: str) -> list[int]:
        """The prompt: examples, case, and the first words of the answer."""
        return self._renderer.encode([*self._examples, case]) + self.tokens(start)

    def tokens(self, text: str) -> list[int]:
        """Ids of `text` alone."""
        ids: list[int] = self._tokenizer(text, add_special_tokens=False)["input_ids"]
        return ids

    def next_log_probs(self, case: Message, start: str, *, room: int = 1) -> Tensor | None:
        """log softmax over the vocabulary [V] of what follows `start`; None when the case does not fit the context."""
        ids = self.ids(case, start)
        if len(ids) + room > self.context_length:
            return None
        with self._lock, torch.no_grad(), reference(self._model):
            head = head_of(self._model)
            hidden_H, _ = self._read(head, ids)
            return head.logits(hidden_H[None])[0].log_softmax(0).cpu()

    def write(
        self, case: Message, start: str, *, texts: int, tokens: int, temperature: float, seed: int
    ) -> list[str]:
        """`texts` continuations of `start`, the first greedy, each up to an end token, a line's end or `tokens`."""
        ids = self.ids(case, start)
        if len(ids) + tokens > self.context_length:
            return []
        generator = torch.Generator().manual_seed(seed)
        with self._lock, torch.no_grad(), reference(self._model):
            head = head_of(self._model)
            hidden_H, cache = self._read(head, ids)
            cache.batch_repeat_interleave(texts)
            hidden_NH = hidden_H[None].expand(texts, -1)
            rows: list[list[int]] = [[] for _ in range(texts)]
            ended = [False] * texts
            for _ in range(tokens):
                chosen_N = _choose(head.logits(hidden_NH).float().cpu(), temperature, generator)
                for row, token in enumerate(chosen_N.tolist()):
                    ended[row] = ended[row] or token in self._renderer.eos_ids
                    if not ended[row]:
                        rows[row].append(token)
                        ended[row] = "\n" in self._renderer.decode(rows[row]).lstrip()
                if all(ended):
                    break
                hidden_NH = head.body(
                    input_ids=chosen_N[:, None].to(head.device), cache=cache, use_cache=True
                ).last_hidden_state[:, -1]
        return [self._renderer.decode(row).strip().split("\n")[0].strip() for row in rows]

    def _read(self, head: Head, ids: Sequence[int]) -> tuple[Tensor, Any]:
        """The last hidden state [H] and a cache of all of `ids`, which the caller may go on with."""
        prefix, cache = self._primed(head)
        if not prefix or list(ids[: len(prefix)]) != prefix:
            prefix, cache = [], _empty_cache(self._model)
        rest = torch.tensor([ids[len(prefix) :]], device=head.device)
        cache = copy.deepcopy(cache)
        hidden_1LH = head.body(input_ids=rest, cache=cache, use_cache=True).last_hidden_state
        return hidden_1LH[0, -1], cache

    def _primed(self, head: Head) -> tuple[list[int], Any]:
        if not self._keep:
            return [], None
        if self._prefix is None:
            one, other = (
                self._renderer.encode([*self._examples, Message("user", t)]) for t in ("a b", "<<<")
            )
            shared = takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False))
            self._prefix = [token for token, _ in shared]
            self._cache = _empty_cache(self._model)
            if self._prefix:
                ids_1L = torch.tensor([self._prefix], device=head.device)
                head.body(input_ids=ids_1L, cache=self._cache, use_cache=True)
        return self._prefix, self._cache


def _choose(logits_NV: Tensor, temperature: float, generator: torch.Generator) -> Tensor:
    """Row 0 the likeliest token, the others drawn."""
    chosen_N = torch.multinomial((logits_NV / temperature).softmax(1), 1, generator=generator)[:, 0]
    chosen_N[0] = logits_NV[0].argmax()
    return chosen_N


def _empty_cache(model: Any) -> Any:
    from transformers import DynamicCache

    return DynamicCache(config=model.config.get_text_config())
