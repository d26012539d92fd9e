"""Which of a turn's accepted hints teaches. The order here is a preference: the first that can be scored is taken.

Explicit feedback comes first, the newest before older; then what a model worded; then quotes. Within the last two the
rule of `signals.hint_choice` decides.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from stereorl.core.overlap import overlap
from stereorl.data import Hint, Turn
from stereorl.policy.engine import Scores
from stereorl.policy.score import Positions
from stereorl.signals.teacher import Teacher

Hinted = tuple[Turn, tuple[Hint, ...]]
OVERLAP_K = 20  # of the likeliest ids at most: beyond, agreement is about noise


class Choice(Protocol):
    """Orders hints. Raises TeacherError where it asks a teacher that fails."""

    def order(self, items: Sequence[Hinted]) -> list[list[Hint]]:
        """Per item all its hints, the best first."""
        ...


class Shortest:
    """By length; of equals the first."""

    def order(self, items: Sequence[Hinted]) -> list[list[Hint]]:
        return [[hint for tier in tiers(hints) for hint in by_length(tier)] for _, hints in items]


class Longest:
    """By length, the longest first; of equals the first."""

    def order(self, items: Sequence[Hinted]) -> list[list[Hint]]:
        return [
            [hint for tier in tiers(hints) for hint in by_length(tier, longest=True)] for _, hints in items
        ]


class Student(Protocol):
    """Who is taught."""

    def likeliest(self, turn: Turn, k: int) -> Tensor:
        """The K likeliest ids at each token of the reply, without a hint [T, K]."""
        ...


class Policy:
    """The student that the weights in force make, adapter on."""

    def __init__(self, model: Any):
        self._model = model

    def likeliest(self, turn: Turn, k: int) -> Tensor:
        was = self._model.training
        self._model.eval()
        try:
            with torch.no_grad():
                temperature = turn.sampling.score_temperature
                own = Positions.of(
                    self._model, [turn.prompt_ids], [turn.response_ids], temperature=temperature
                )
                return own.top(k)[0].cpu()
        finally:
            self._model.train(was)


@dataclass(frozen=True, slots=True)
class Overlap:
    """By how many of the K likeliest ids of `student`, who sees no hint, the teacher under the hint shares; of equals
    the shorter. Only where that decides: not beside feedback, nor for a hint that is alone among its kind.
    """

    student: Student
    teacher: Teacher
    k: int

    def order(self, items: Sequence[Hinted]) -> list[list[Hint]]:
        ordered = Shortest().order(items)
        for at, (turn, hints) in enumerate(items):
            first, *others = tiers(hints)
            if len(first) > 1 and first[0].source != "feedback":
                rest = [hint for tier in others for hint in by_length(tier)]
                ordered[at] = [*self._agreeing(turn, by_length(first)), *rest]
        return ordered

    def _agreeing(self, turn: Turn, hints: Sequence[Hint]) -> list[Hint]:
        """Those that agree most first; one that cannot be scored comes last."""
        own_TK = self.student.likeliest(turn, self.k)
        scored = self.teacher.score([(turn, hint.text) for hint in hints], top_k=self.k)
        shared = [-1 if isinstance(found, str) else overlap(own_TK, _ids(found)) for found in scored]
        best_first = sorted(range(len(hints)), key=lambda at: -shared[at])  # stable: `hints` come by length
        return [hints[at] for at in best_first]


def tiers(hints: Sequence[Hint]) -> list[list[Hint]]:
    """Feedback, what a model worded, the rest; those that there are, each in the given order."""
    kinds = [[h for h in hints if h.source == source] for source in ("feedback", "model")]
    kinds.append([h for h in hints if h.source not in ("feedback", "model")])
    return [kind for kind in kinds if kind]


def by_length(hints: Sequence[Hint], *, longest: bool = False) -> list[Hint]:
    """Ordered by length, equals as they are; feedback stays as it is, newest first."""
    if hints and hints[0].source == "feedback":
        return list(hints)
    return sorted(hints, key=lambda hint: -len(hint.text) if longest else len(hint.text))


def _ids(scores: Scores) -> Tensor:
    assert scores.top_ids is not None, "a teacher that was asked for its likeliest ids gave none"
    return torch.from_numpy(scores.top_ids.astype(np.int64))
