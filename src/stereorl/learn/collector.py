"""From captured turns to judged ones. Every turn that will never train leaves with a named reason (invariant 7)."""

from __future__ import annotations

from contextlib import suppress

from stereorl import faults
from stereorl.config import SignalsConfig
from stereorl.data import Turn
from stereorl.errors import NotFoundError
from stereorl.signals.hints import extract_hints
from stereorl.signals.judge import Judge, judge_item
from stereorl.store.records import JudgeItem
from stereorl.store.store import Store


def untrainable(turn: Turn) -> str | None:
    """Why this turn can never train, whatever its next state says; None when it can."""
    if turn.finish_reason in ("cancelled", "error"):
        return turn.finish_reason
    return "empty_reply" if len(turn.response_ids) == 0 else None


class Collector:
    """Judges what waits and drops what cannot be used. Touches no model weights, so it may run in its own thread."""

    def __init__(self, store: Store, judge: Judge, config: SignalsConfig):
        self._store = store
        self._judge = judge
        self._config = config

    def collect(self) -> int:
        """One round over the queues; returns how many turns moved."""
        items = self._store.judge_queue()
        for item in items:
            with suppress(NotFoundError):  # here and below: its session was forgotten meanwhile
                self._judged(item)
        orphans = self._store.orphan_queue()
        for turn_id in orphans:
            with suppress(NotFoundError):
                reason = untrainable(self._store.turn(turn_id)) or "no_next_state"
                self._store.drop(turn_id, "judge", reason)
        signalless = self._store.signalless()
        for turn_id in signalless:
            with suppress(NotFoundError):
                self._store.drop(turn_id, "judge", "no_signal")
        return len(items) + len(orphans) + len(signalless)

    def _judged(self, item: JudgeItem) -> None:
        turn_id = item.turn.turn_id
        reason = untrainable(item.turn)
        if reason is not None:
            self._store.drop(turn_id, "judge", reason)
            return
        faults.point("learn.judged.before")
        verdict = judge_item(self._judge, item)
        hints = extract_hints(
            item.next_state,
            item.feedback,
            trust=self._config.hint_trust,
            max_chars=self._config.hint_max_chars,
            reply=item.turn.reply,
            request=item.turn.messages,
        )
        self._store.record_judgement(turn_id, verdict, hints)
        faults.point("learn.judged.after")
