"""The teacher's log-probs on the sampled ids: once when a hint is found, and again at the step for a live teacher."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

from stereorl import faults
from stereorl.data import Hint, Sample, TeacherScore, Turn
from stereorl.data.turn import FloatArray
from stereorl.errors import MisalignedError, NotFoundError
from stereorl.signals.teacher import HINT_OVER_CONTEXT, Teacher
from stereorl.store.store import Store

log = logging.getLogger("stereorl.learn")


class Scorer:
    """Scores hinted turns. A hint that does not fit into the context drops its turn by name."""

    def __init__(self, store: Store, teacher: Teacher, *, at_a_time: int):
        self._store = store
        self._teacher = teacher
        self._at_a_time = at_a_time

    def score(self) -> int:
        """Score what waits, a few at a time; returns how many turns moved."""
        waiting = self._store.score_queue(limit=self._at_a_time)
        if not waiting:
            return 0
        faults.point("learn.scored.before")
        scores = self._teacher.score([(turn, hint.text) for turn, hint in waiting])
        for (turn, hint), log_probs in zip(waiting, scores, strict=True):
            with suppress(NotFoundError):  # its session was forgotten meanwhile
                self._record(turn, hint, log_probs)
        return len(waiting)

    def fresh(self, samples: Sequence[Sample]) -> list[Sample]:
        """The samples with the teacher's log-probs of this moment, if the teacher moves with the policy."""
        hinted = [(s.turn, s.hint) for s in samples if s.hint is not None]
        if self._teacher.name != "live" or not hinted:
            return list(samples)
        scores = {
            turn.turn_id: new for (turn, _), new in zip(hinted, self._teacher.score(hinted), strict=True)
        }
        return [
            s if (new := scores.get(s.turn.turn_id)) is None else replace(s, teacher_log_probs=new)
            for s in samples
        ]

    def _record(self, turn: Turn, hint: Hint, log_probs: FloatArray | None) -> None:
        if log_probs is None:
            self._store.drop(turn.turn_id, "score", HINT_OVER_CONTEXT)
            return
        score = TeacherScore(
            turn_id=turn.turn_id,
            hint=hint.text,
            teacher=self._teacher.name,
            temperature=turn.sampling.score_temperature,
            log_probs=log_probs,
        )
        try:
            self._store.record_teacher_score(score)
        except MisalignedError as error:
            log.warning("%s", error)
            self._store.drop(turn.turn_id, "score", "misaligned")
        faults.point("learn.scored.after")
