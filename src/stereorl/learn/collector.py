"""From captured turns to judged ones. Every turn that will never train leaves with a named reason (invariant 7).

    judge queue ──▶ decided without a model? ──yes──▶ verdict and hints are recorded
                        │ no                            ▲
                        ▼                               │
                    a few a round: ask the model ──▶ it answers
                        │ it failed, or all its votes abstained
                        ▼
                    waits judge_backoff_s * 2^k, judge_retries times; then recorded without a reward, the quote
                    as its hint, or dropped: judge_abstained

What waits for a model holds up nobody else. The schedule is in memory: after a restart each turn starts anew.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from stereorl import faults
from stereorl.config import SignalsConfig
from stereorl.data import Hint, Turn, Verdict
from stereorl.errors import JudgeError, NotFoundError
from stereorl.signals.hinter import Hinter, QuoteHinter
from stereorl.signals.judge import MODELS, Judge, judge_item, quick_votes, verdict_of
from stereorl.store.records import JudgeItem
from stereorl.store.store import Store

log = logging.getLogger("stereorl.learn")

AT_A_TIME = 32  # turns a round that no model has to be asked about
MODEL_AT_A_TIME = 2  # turns a round that a model is asked about
MOST = 10_000  # turns that may wait for a model; beyond, nothing new is looked at until some have left
JUDGE_ABSTAINED = "judge_abstained"


def untrainable(turn: Turn) -> str | None:
    """Why this turn can never train, whatever its next state says; None when it can."""
    if turn.finish_reason in ("cancelled", "error"):
        return turn.finish_reason
    return "empty_reply" if len(turn.response_ids) == 0 else None


@dataclass(slots=True)
class _Waiting:
    """A turn that a model must be asked about. `verdict`: decided already; only the hint is missing."""

    failures: int = 0
    not_before: float = 0.0
    verdict: Verdict | None = None


class Collector:
    """Judges what waits and drops what cannot be used. Runs in its own thread: model weights are touched by the judge
    and the hinter only, under the lock that they were given.
    """

    def __init__(
        self,
        store: Store,
        judge: Judge,
        config: SignalsConfig,
        *,
        hinter: Hinter | None = None,
        clock: Callable[[], float] = time.monotonic,
    ):
        self._store = store
        self._judge = judge
        self._config = config
        self._hinter = hinter or QuoteHinter(config)
        self._clock = clock
        self._waiting: dict[str, _Waiting] = {}

    def collect(self) -> int:
        """One round over the queues; returns how many turns moved."""
        return self._collect_judged() + self._drop_orphans() + self._drop_signalless()

    def _collect_judged(self) -> int:
        new = self._store.judge_queue(AT_A_TIME, skip=self._waiting) if len(self._waiting) < MOST else []
        moved = sum(self._quickly(item) for item in new)
        due = self._due()
        items = self._store.judge_queue(MODEL_AT_A_TIME, only=due) if due else []
        for gone in set(due) - {item.turn.turn_id for item in items}:  # forgotten or dropped meanwhile
            del self._waiting[gone]
        return moved + sum(self._by_model(item) for item in items)

    def _due(self) -> list[str]:
        """Whom to ask a model about in this round: the untried first, else the oldest."""
        now = self._clock()
        due = [(w.failures, turn_id) for turn_id, w in self._waiting.items() if w.not_before <= now]
        return [turn_id for _, turn_id in sorted(due, key=lambda pair: pair[0])[:MODEL_AT_A_TIME]]

    def _quickly(self, item: JudgeItem) -> bool:
        """Settle a turn that needs no model; one that does is noted as waiting."""
        reason = untrainable(item.turn)
        if reason is not None:
            return self._drop(item.turn.turn_id, reason)
        faults.point("learn.judged.before")
        votes = quick_votes(self._judge, item.turn, item.next_state, item.feedback)
        if votes is None:
            return self._wait(item, None)
        verdict = verdict_of(votes, item.feedback)
        hints = self._hinter.quick(item.turn, item.next_state, item.feedback, verdict)
        if hints is None:
            return self._wait(item, verdict)
        return self._record(item, verdict, hints)

    def _wait(self, item: JudgeItem, verdict: Verdict | None) -> bool:
        self._waiting[item.turn.turn_id] = _Waiting(verdict=verdict)
        return False

    def _by_model(self, item: JudgeItem) -> bool:
        waiting = self._waiting[item.turn.turn_id]
        try:
            waiting.verdict = waiting.verdict or judge_item(self._judge, item)
            hints = self._hinter.hints(item.turn, item.next_state, item.feedback, waiting.verdict)
        except JudgeError as error:
            return self._failed(item, waiting, error)
        return self._record(item, waiting.verdict, hints)

    def _failed(self, item: JudgeItem, waiting: _Waiting, error: JudgeError) -> bool:
        """Try again later, or give up: what was decided stands, and the user's own sentence is the hint."""
        if waiting.failures < self._config.judge_retries:
            pause = self._config.judge_backoff_s * 2**waiting.failures
            waiting.failures += 1
            waiting.not_before = self._clock() + pause
            log.warning("Turn %s: %s Asking again in %g s.", item.turn.turn_id, error, pause)
            return False
        log.error("Turn %s: %s Given up after %d tries.", item.turn.turn_id, error, waiting.failures + 1)
        reason = f"no verdict in {waiting.failures + 1} tries: {error}"
        verdict = waiting.verdict or Verdict(None, reason, getattr(error, "votes", ()))
        hints = QuoteHinter(self._config).hints(item.turn, item.next_state, item.feedback, verdict)
        return self._record(item, verdict, hints, abstained=verdict.reward is None)

    def _record(
        self, item: JudgeItem, verdict: Verdict, hints: Sequence[Hint], *, abstained: bool = False
    ) -> bool:
        turn_id = item.turn.turn_id
        self._waiting.pop(turn_id, None)
        by_model = abstained or any(vote.judge in MODELS for vote in verdict.votes)
        with suppress(NotFoundError):  # here and below: its session was forgotten meanwhile
            self._store.record_judgement(turn_id, verdict, hints)
            if verdict.reward is None and by_model and not any(hint.accepted for hint in hints):
                self._store.drop(turn_id, "judge", JUDGE_ABSTAINED)
        faults.point("learn.judged.after")
        return True

    def _drop_orphans(self) -> int:
        orphans = self._store.orphan_queue()
        for turn_id in orphans:
            with suppress(NotFoundError):
                self._drop(turn_id, untrainable(self._store.turn(turn_id)) or "no_next_state")
        return len(orphans)

    def _drop_signalless(self) -> int:
        signalless = self._store.signalless()
        for turn_id in signalless:
            self._drop(turn_id, "no_signal")
        return len(signalless)

    def _drop(self, turn_id: str, reason: str) -> bool:
        with suppress(NotFoundError):
            self._store.drop(turn_id, "judge", reason)
        return True
