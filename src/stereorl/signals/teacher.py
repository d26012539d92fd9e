"""Teachers: the model that sees the hint scores the reply that was given without it.

The teacher's prompt is the turn's prompt with the hint in its last user message; the response ids are the sampled
ones, at the turn's own temperature (invariants 1 and 2). The base teacher is the frozen base, adapter off; a live one
is the policy itself and degenerates when trained on for long.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch

from stereorl.data import Turn
from stereorl.data.turn import FloatArray, IntArray
from stereorl.errors import RequestError
from stereorl.policy.adapters import reference
from stereorl.policy.render import Renderer, with_hint
from stereorl.policy.score import response_log_probs

# Why an item got no score (None in the result); the reason to record when a turn is dropped for it.
HINT_OVER_CONTEXT = "hint_over_context"


class Teacher(Protocol):
    """Scores replies under their hints. `name` goes into the store beside each score."""

    name: str

    def score(self, turns_and_hints: Sequence[tuple[Turn, str]]) -> list[FloatArray | None]:
        """Per item: float32 [R], log pi(response[t] | prompt + hint, response[:t]); None when it does not fit."""
        ...


class _Row(NamedTuple):
    at: int
    prompt: Sequence[int] | IntArray
    turn: Turn

    @property
    def size(self) -> int:
        return len(self.prompt) + len(self.turn.response_ids)


class BaseTeacher:
    """The frozen base model, hint in its prompt. `micro_tokens` bounds one forward pass."""

    name = "base"

    def __init__(self, model: Any, renderer: Renderer, label: str, *, micro_tokens: int = 2048):
        self._model = model
        self._renderer = renderer
        self._label = label
        self._micro_tokens = micro_tokens

    def prompt_ids(self, turn: Turn, hint: str) -> Sequence[int] | IntArray | None:
        """Ids of the turn's prompt with the hint (the stored ids when there is none); None when it does not fit."""
        if not hint:
            return turn.prompt_ids
        try:
            ids = self._renderer.encode(with_hint(turn.messages, hint, self._label), turn.tools)
        except RequestError:  # the template that took the prompt takes it with more words, or not at all
            return None
        fits = len(ids) + len(turn.response_ids) <= self._renderer.context_length
        return ids if fits else None

    def score(self, turns_and_hints: Sequence[tuple[Turn, str]]) -> list[FloatArray | None]:
        scores: list[FloatArray | None] = [None] * len(turns_and_hints)
        rows = []
        for at, (turn, hint) in enumerate(turns_and_hints):
            prompt = self.prompt_ids(turn, hint)
            if prompt is not None:
                rows.append(_Row(at, prompt, turn))
        for group in self._groups(rows):
            for row, values in zip(group, self._score_group(group), strict=True):
                scores[row.at] = values
        return scores

    def _groups(self, rows: Sequence[_Row]) -> Iterator[list[_Row]]:
        """Rows of like length together, padded size within the bound; a longer row goes alone."""
        group: list[_Row] = []
        for row in sorted(rows, key=lambda r: -r.size):
            if group and (len(group) + 1) * group[0].size > self._micro_tokens:
                yield group
                group = []
            group.append(row)
        if group:
            yield group

    def _score_group(self, group: Sequence[_Row]) -> list[FloatArray]:
        with torch.no_grad(), _evaluating(self._model), self._weights():
            logp_BR, _ = response_log_probs(
                self._model,
                [row.prompt for row in group],
                [row.turn.response_ids for row in group],
                temperature=[row.turn.sampling.score_temperature for row in group],
            )
        table = logp_BR.float().cpu().numpy()
        return [
            np.ascontiguousarray(table[i, : len(row.turn.response_ids)], np.float32)
            for i, row in enumerate(group)
        ]

    def _weights(self) -> AbstractContextManager[Any]:
        return reference(self._model)


class LiveTeacher(BaseTeacher):
    """The policy as it is, adapter on."""

    name = "live"

    def _weights(self) -> AbstractContextManager[Any]:
        return nullcontext()


@contextmanager
def _evaluating(model: Any) -> Iterator[None]:
    was = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(was)
