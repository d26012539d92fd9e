"""The teacher's log-probs on the sampled ids: once when a hint is found, and again at the step for a moving teacher."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import cast

from stereorl import faults
from stereorl.data import Hint, Sample, TeacherScore, Turn
from stereorl.errors import MisalignedError, NotFoundError, TeacherError
from stereorl.learn.choosing import Choice, Hinted, Shortest
from stereorl.policy.engine import Scores
from stereorl.signals.teacher import DistributionTeacher, Teacher
from stereorl.store.store import Store

log = logging.getLogger("stereorl.learn")

FIRST_PAUSE_S = 1.0
LONGEST_PAUSE_S = 60.0


class Scorer:
    """Scores hinted turns. One whose hints cannot be scored goes on with its reward, or is dropped by name.

    A teacher that fails is asked again after 1, 2, 4 ... 60 s; until then `score` moves nothing, and what is ready
    trains. `top_k`: how many of the teacher's likeliest ids are recorded at each token. `asked_at_step`: the objective
    takes a `DistributionTeacher`'s forward pass at the step, so a hint must fit the context then too.
    """

    def __init__(
        self,
        store: Store,
        teacher: Teacher,
        *,
        at_a_time: int,
        top_k: int = 0,
        asked_at_step: bool = False,
        choice: Choice | None = None,
        clock: Callable[[], float] = time.monotonic,
    ):
        self._store = store
        self._teacher = teacher
        self._at_a_time = at_a_time
        self._top_k = top_k
        self._asked_at_step = asked_at_step
        self._choice = choice or Shortest()
        self._clock = clock
        self._pause_s = FIRST_PAUSE_S
        self._not_before = -float("inf")

    @property
    def pausing(self) -> bool:
        """Whether the teacher failed, and is not to be asked again yet."""
        return self._clock() < self._not_before

    def score(self) -> int:
        """Score what waits, a few at a time; returns how many turns moved."""
        if self.pausing:
            return 0
        waiting = self._store.score_queue(limit=self._at_a_time)
        if not waiting:
            return 0
        faults.point("learn.scored.before")
        try:
            found = self._ask(waiting)
        except TeacherError as error:
            log.error("%s %d turns wait; asking again in %g s.", error, len(waiting), self._pause_s)
            self._pause()
            return 0
        self._pause_s = FIRST_PAUSE_S
        for (turn, _), (hint, scores) in zip(waiting, found, strict=True):
            with suppress(NotFoundError):  # its session was forgotten meanwhile
                self._record(turn, hint, scores)
        return len(waiting)

    def fresh(self, samples: Sequence[Sample]) -> list[Sample]:
        """The samples with the teacher's log-probs of this moment, where it moves with the policy or where what was
        recorded lacks the likeliest ids that are wanted (the settings were others then).

        One that it can no longer score trains on its reward alone or, without one, on what was recorded; so do all when
        the teacher fails (TeacherError, and a pause, where that does not suffice). One that has no reward, and whose
        hint the step cannot read any more, is left out.
        """
        return [left for sample in self._asked_again(samples) if (left := self._readable(sample)) is not None]

    def _readable(self, sample: Sample) -> Sample | None:
        """The sample, without its hint where the step could not read that; None when nothing is left of it."""
        if not sample.has_teacher:
            return sample
        fits = not self._asked_at_step or self._fits(sample)
        if fits and not self._lacks_top(sample):
            return sample
        return _unhinted(sample) if sample.has_reward else None

    def _fits(self, sample: Sample) -> bool:
        return cast("DistributionTeacher", self._teacher).fits(sample.turn, sample.hint or "")

    def _asked_again(self, samples: Sequence[Sample]) -> list[Sample]:
        again = [s for s in samples if s.hint is not None and (self._teacher.moves or self._lacks_top(s))]
        if not again:
            return list(samples)
        pairs = [(s.turn, s.hint or "") for s in again]
        try:
            scores = self._teacher.score(pairs, top_k=self._top_k)
        except TeacherError as error:
            if any(map(self._lacks_top, again)):
                self._pause()
                raise
            log.error("%s This step uses the recorded scores.", error)
            return list(samples)
        found = {s.turn.turn_id: new for s, new in zip(again, scores, strict=True)}
        return [_renewed(sample, found.get(sample.turn.turn_id)) for sample in samples]

    def _pause(self) -> None:
        self._not_before = self._clock() + self._pause_s
        self._pause_s = min(2 * self._pause_s, LONGEST_PAUSE_S)

    def _lacks_top(self, sample: Sample) -> bool:
        known = 0 if sample.teacher_top_ids is None else sample.teacher_top_ids.shape[1]
        return known < self._top_k

    def _ask(self, waiting: Sequence[Hinted]) -> list[tuple[Hint, Scores | str]]:
        """Per turn the best hint that can be scored, with its scores; else the best one, with the reason."""
        orders = self._choice.order(waiting)
        answers: dict[int, tuple[Hint, Scores | str]] = {}
        for rank in range(max(map(len, orders))):
            left = [
                at
                for at, hints in enumerate(orders)
                if rank < len(hints) and (at not in answers or isinstance(answers[at][1], str))
            ]
            if not left:
                break
            pairs = [(waiting[at][0], orders[at][rank].text) for at in left]
            for at, scores in zip(left, self._teacher.score(pairs, top_k=self._top_k), strict=True):
                if rank == 0 or not isinstance(scores, str):
                    answers[at] = (orders[at][rank], scores)
        return [answers[at] for at in range(len(waiting))]

    def _record(self, turn: Turn, hint: Hint, scores: Scores | str) -> None:
        if isinstance(scores, str):
            self._store.record_unscored(turn.turn_id, scores)
        else:
            self._record_scores(turn, hint, scores)
        faults.point("learn.scored.after")

    def _record_scores(self, turn: Turn, hint: Hint, scores: Scores) -> None:
        score = TeacherScore(
            turn_id=turn.turn_id,
            hint=hint.text,
            teacher=self._teacher.name,
            temperature=turn.sampling.score_temperature,
            log_probs=scores.log_probs,
            top_ids=scores.top_ids,
            top_log_probs=scores.top_log_probs,
        )
        try:
            self._store.record_teacher_score(score)
        except MisalignedError as error:
            log.warning("%s", error)
            self._store.record_unscored(turn.turn_id, "misaligned")


def _renewed(sample: Sample, new: Scores | str | None) -> Sample:
    if isinstance(new, Scores):
        return replace(
            sample,
            teacher_log_probs=new.log_probs,
            teacher_top_ids=new.top_ids,
            teacher_top_log_probs=new.top_log_probs,
        )
    return sample if new is None or not sample.has_reward else _unhinted(sample)


def _unhinted(sample: Sample) -> Sample:
    return replace(
        sample, hint=None, teacher_log_probs=None, teacher_top_ids=None, teacher_top_log_probs=None
    )
