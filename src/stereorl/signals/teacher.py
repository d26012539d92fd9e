"""Teachers: the model that sees the hint scores the reply that was given without it.

The teacher's prompt is the turn's prompt with the hint in its last user message; the response ids are the sampled
ones, at the turn's own temperature (invariants 1 and 2). The base teacher is the frozen base, adapter off; a live one
is the policy itself and degenerates when trained on for long; an ema teacher follows the policy slowly.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, NamedTuple, Protocol

import torch

from stereorl.data import Turn
from stereorl.data.turn import IntArray
from stereorl.errors import MisalignedError, RequestError
from stereorl.policy.adapters import Average, reference
from stereorl.policy.engine import Scores
from stereorl.policy.render import Renderer, with_hint
from stereorl.policy.score import Positions

# Why an item got no score (named in the result); the reason to record when a turn is dropped for it.
HINT_OVER_CONTEXT = "hint_over_context"


class Teacher(Protocol):
    """Scores replies under their hints. `name` goes into the store beside each score.

    `moves`: it changes with the policy, so the learner asks it again at each step. `follow` is told of each step that
    was taken; the state is what a checkpoint must hold.
    """

    name: str
    moves: bool

    def score(self, turns_and_hints: Sequence[tuple[Turn, str]], *, top_k: int = 0) -> list[Scores | str]:
        """Per item: log pi(response[t] | prompt + hint, response[:t]) at the turn's temperature and, for
        `top_k` > 0, the K likeliest ids at each position; or the name of the reason why it has none.

        Raises TeacherError when the teacher itself failed and may be asked again.
        """
        ...

    def follow(self) -> None: ...

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


class DistributionTeacher(Teacher, Protocol):
    """A teacher in this process, whose whole distribution can be had at each token."""

    def positions(self, turns_and_hints: Sequence[tuple[Turn, str]]) -> Positions:
        """One forward pass over all items, without gradient. Every item must fit the context."""
        ...

    def fits(self, turn: Turn, hint: str) -> bool:
        """Whether prompt, hint and reply fit the context."""
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
    moves = False

    def __init__(self, model: Any, renderer: Renderer, label: str, *, micro_tokens: int = 2048):
        self._model = model
        self._renderer = renderer
        self._label = label
        self._micro_tokens = micro_tokens

    def prompt_ids(self, turn: Turn, hint: str) -> Sequence[int] | IntArray | None:
        """Ids of the turn's prompt with the hint (the stored ids when there is none); None when it does not fit."""
        return hinted_prompt(self._renderer, turn, hint, self._label)

    def score(self, turns_and_hints: Sequence[tuple[Turn, str]], *, top_k: int = 0) -> list[Scores | str]:
        scores: list[Scores | str] = [HINT_OVER_CONTEXT] * len(turns_and_hints)
        rows = []
        for at, (turn, hint) in enumerate(turns_and_hints):
            prompt = self.prompt_ids(turn, hint)
            if prompt is not None:
                rows.append(_Row(at, prompt, turn))
        for group in self._groups(rows):
            for row, values in zip(group, self._forward(group).scores(top_k), strict=True):
                scores[row.at] = values
        return scores

    def positions(self, turns_and_hints: Sequence[tuple[Turn, str]]) -> Positions:
        rows = []
        for at, (turn, hint) in enumerate(turns_and_hints):
            prompt = self.prompt_ids(turn, hint)
            if prompt is None:
                raise MisalignedError(f"The hint of turn {turn.turn_id} no longer fits into the context.")
            rows.append(_Row(at, prompt, turn))
        return self._forward(rows)

    def fits(self, turn: Turn, hint: str) -> bool:
        return self.prompt_ids(turn, hint) is not None

    def follow(self) -> None:
        """The base never moves."""

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Nothing to take up."""

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

    def _forward(self, group: Sequence[_Row]) -> Positions:
        with torch.no_grad(), _evaluating(self._model), self._weights():
            return Positions.of(
                self._model,
                [row.prompt for row in group],
                [row.turn.response_ids for row in group],
                temperature=[row.turn.sampling.score_temperature for row in group],
            ).frozen()

    def _weights(self) -> AbstractContextManager[Any]:
        return reference(self._model)


class LiveTeacher(BaseTeacher):
    """The policy as it is, adapter on."""

    name = "live"
    moves = True

    def _weights(self) -> AbstractContextManager[Any]:
        return nullcontext()


class EMATeacher(BaseTeacher):
    """An average of the policy's weights over its updates: theta_T <- (1 - rate) * theta_T + rate * theta.

    Source: DESIGN section 2; rate 0.05 as in SDPO (arXiv 2601.20802). Begins as the policy it is made over. The
    average is of the trained parameters (of a LoRA its two matrices, not their product).
    """

    name = "ema"
    moves = True

    def __init__(
        self, model: Any, renderer: Renderer, label: str, *, micro_tokens: int = 2048, ema_rate: float = 0.05
    ):
        super().__init__(model, renderer, label, micro_tokens=micro_tokens)
        self._average = Average(model, ema_rate)

    def follow(self) -> None:
        self._average.follow()

    def state_dict(self) -> dict[str, Any]:
        return self._average.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._average.load_state_dict(state)

    def _weights(self) -> AbstractContextManager[Any]:
        return self._average.weights()


def hinted_prompt(renderer: Renderer, turn: Turn, hint: str, label: str) -> Sequence[int] | IntArray | None:
    """Ids of the turn's prompt with the hint (the stored ids when there is none); None when it does not fit."""
    if not hint:
        return turn.prompt_ids
    try:
        ids = renderer.encode(with_hint(turn.messages, hint, label), turn.tools)
    except RequestError:  # the template that took the prompt takes it with more words, or not at all
        return None
    return ids if len(ids) + len(turn.response_ids) <= renderer.context_length else None


@contextmanager
def _evaluating(model: Any) -> Iterator[None]:
    was = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(was)
