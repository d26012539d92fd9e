"""The store: one facade over capture, reading, signals, training and admin. Each method is one transaction.

Server and learner open the same store in their own processes. They meet here and in the versions folder, and
nowhere else; a method waits for another process's write at most BUSY_TIMEOUT_S and then says so.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Collection, Mapping, Sequence
from types import TracebackType
from typing import Any, Literal

import sqlalchemy as sa

from stereorl import faults
from stereorl.data import Hint, NextState, TeacherScore, Turn, Verdict
from stereorl.errors import StoreError
from stereorl.store import admin, capture, reading, signals, training
from stereorl.store.engine import make_engine, translated
from stereorl.store.engine import reading as transaction
from stereorl.store.engine import writing as write_transaction
from stereorl.store.migrate import current_revision, migrate
from stereorl.store.records import (
    Claim,
    Drop,
    Forgotten,
    Funnel,
    ImportedTurn,
    JudgeItem,
    NewSession,
    OpenStep,
    Outcome,
    Ready,
    Record,
    SessionEvent,
    SessionRow,
    StepRow,
    TurnDetail,
    TurnRef,
)
from stereorl.store.writer import Writer


class Store:
    """Sync and thread-safe. Make one with `Store.open`; close it, or use it as a context manager."""

    def __init__(self, engine: sa.Engine):
        self._engine = engine

    @classmethod
    def open(cls, url: str, *, create: bool = True) -> Store:
        """Open the store at an SQLAlchemy URL and migrate it to this version's schema.

        StoreError: the file is missing (with create=False), unwritable, damaged, of something else, or from a
        newer StereoRL; the message says what to do.
        """
        engine = make_engine(url, create=create)
        try:
            with translated(engine):
                migrate(engine, create=create)
                cls._check_writable(engine)
        except BaseException:
            engine.dispose()
            raise
        return cls(engine)

    @staticmethod
    def _check_writable(engine: sa.Engine) -> None:
        if engine.dialect.name == "sqlite":
            with write_transaction(engine) as connection:
                connection.exec_driver_sql("PRAGMA user_version=0")

    def close(self) -> None:
        self._engine.dispose()

    def __enter__(self) -> Store:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # --- capture ---

    def put(self, records: Sequence[Record]) -> None:
        """Store all records or none. Those that are there already are left as they are.

        NotFoundError: a record names an unknown session or turn. StoreError: a full disk, or a turn id that
        is taken.
        """
        with write_transaction(self._engine) as connection:
            capture.put(connection, records)
            faults.point("store.before_commit")
        faults.point("store.after_commit")

    def writer(self, *, batch_ms: float = 2.0) -> Writer:
        return Writer(self.put, batch_ms=batch_ms)

    # --- reading ---

    def turn(self, turn_id: str) -> Turn:
        with transaction(self._engine) as connection:
            return reading.get_turn(connection, turn_id)

    def detail(self, turn_id: str) -> TurnDetail:
        with transaction(self._engine) as connection:
            return reading.detail(connection, turn_id)

    def find_turn(self, prefix: str) -> str:
        """The full id of the one turn whose id begins with `prefix`; NotFoundError when there is none, or
        several.
        """
        with transaction(self._engine) as connection:
            return reading.find_turn(connection, prefix)

    def continuation(self, key: str, *, within: str | None = None) -> TurnRef | None:
        """The latest turn with chain_key(messages + [reply]) == key: the one that a request continues.
        `within` names a session: only its turns and those of its forks count.
        """
        with transaction(self._engine) as connection:
            return reading.continuation(connection, key, within)

    def same_prompt(self, key: str, *, within: str | None = None) -> TurnRef | None:
        """The latest turn with chain_key(messages) == key: the one that a request asks for again."""
        with transaction(self._engine) as connection:
            return reading.same_prompt(connection, key, within)

    def next_states(self, turn_id: str) -> tuple[NextState, ...]:
        """What followed a turn so far, oldest first."""
        with transaction(self._engine) as connection:
            return reading.next_states_of(connection, turn_id)

    def last_main_turn(self, session_id: str) -> TurnRef | None:
        with transaction(self._engine) as connection:
            return reading.last_main_turn(connection, session_id)

    def sessions(self, limit: int = 50, offset: int = 0) -> list[SessionRow]:
        """The latest first."""
        with transaction(self._engine) as connection:
            return reading.sessions(connection, limit, offset)

    def session_turns(self, session_id: str) -> list[str]:
        with transaction(self._engine) as connection:
            return reading.session_turns(connection, session_id)

    def idle_sessions(self, before: float) -> list[str]:
        """Open sessions whose last turn is older than `before`."""
        with transaction(self._engine) as connection:
            return reading.idle_sessions(connection, before)

    def funnel(self) -> Funnel:
        with transaction(self._engine) as connection:
            return admin.funnel(connection)

    def score_over_time(self, bucket: int = 8) -> list[tuple[float, float, int]]:
        """(time, mean reward, n) over consecutive rewarded turns."""
        with transaction(self._engine) as connection:
            return admin.score_over_time(connection, bucket)

    # --- signals ---

    def judge_queue(
        self, limit: int = 32, *, skip: Collection[str] = (), only: Collection[str] | None = None
    ) -> list[JudgeItem]:
        """Turns that something followed and nobody judged, oldest first; those in `skip` left out, or `only` those."""
        with transaction(self._engine) as connection:
            return signals.judge_queue(connection, limit, skip, only)

    def orphan_queue(self, limit: int = 64) -> list[str]:
        """Turns that nothing followed before their session closed."""
        with transaction(self._engine) as connection:
            return signals.orphan_queue(connection, limit)

    def record_judgement(self, turn_id: str, verdict: Verdict, hints: Sequence[Hint]) -> None:
        """Store verdict, votes and hints; nothing when the turn has a verdict or was dropped."""
        with write_transaction(self._engine) as connection:
            signals.record_judgement(connection, turn_id, verdict, hints)

    def score_queue(self, limit: int = 16) -> list[tuple[Turn, tuple[Hint, ...]]]:
        """Turns that wait for their teacher, oldest first, each with all its accepted hints in order."""
        with transaction(self._engine) as connection:
            return signals.score_queue(connection, limit)

    def record_teacher_score(self, score: TeacherScore) -> None:
        """Store a score; nothing when the turn has one. MisalignedError when it does not fit the turn."""
        with write_transaction(self._engine) as connection:
            signals.record_teacher_score(connection, score)

    def record_unscored(self, turn_id: str, reason: str) -> None:
        """No hint of a turn that waits for its teacher can be scored: it goes on with its reward alone, or is
        dropped for this reason when it has none. No effect on any other turn.
        """
        with write_transaction(self._engine) as connection:
            signals.record_unscored(connection, turn_id, reason)

    def drop(self, turn_id: str, stage: str, reason: str) -> None:
        """Never train this turn. No effect when it is held by a step, trained, or dropped already."""
        with write_transaction(self._engine) as connection:
            capture.put(connection, [Drop(turn_id, stage, reason)])

    # --- training ---

    def ready(self) -> Ready:
        with transaction(self._engine) as connection:
            return training.ready(connection)

    def signalless(self, limit: int = 64) -> list[str]:
        """Judged turns with neither reward nor accepted hint."""
        with transaction(self._engine) as connection:
            return list(connection.execute(signals.queue("signalless", limit)).scalars("turn_id"))

    def trim_ready(self, keep: int) -> int:
        """Drop the oldest of more than `keep` samples that wait for an update, "buffer_full"; returns how many."""
        with transaction(self._engine) as connection:
            if training.ready(connection).n <= keep:
                return 0
        with write_transaction(self._engine) as connection:
            return training.trim_ready(connection, keep)

    def claim(
        self,
        n: int,
        *,
        parent_version: int,
        order: Literal["oldest"] = "oldest",
        replay: int = 0,
        oldest_version: int = 0,
    ) -> Claim | None:
        """Hold up to `n` ready samples for a new step, exactly once; None when none is ready.

        `replay` more are drawn from the turns that published steps trained last, none with a token older than
        `oldest_version`: uniformly, the same ones whenever this step is claimed from this store.
        """
        assert n > 0
        assert order == "oldest"
        with write_transaction(self._engine) as connection:
            return training.claim(connection, n, parent_version, replay=replay, oldest_version=oldest_version)

    def finish_step(
        self,
        step_id: int,
        outcome: Outcome,
        *,
        version: int | None = None,
        metrics: Mapping[str, Any] | None = None,
    ) -> None:
        """published: its samples are trained. rejected: they are dropped, "gate_rejected". abandoned: they
        are ready again. The same outcome twice changes nothing; another one is a StoreError.
        """
        with write_transaction(self._engine) as connection:
            training.finish_step(connection, step_id, outcome, version, metrics or {})

    def open_steps(self) -> list[OpenStep]:
        """Steps without an outcome: a crash left them, or their learner is at work."""
        with transaction(self._engine) as connection:
            return training.open_steps(connection)

    def steps(self, limit: int = 1000) -> list[StepRow]:
        """The last `limit` steps, oldest first."""
        with transaction(self._engine) as connection:
            return training.steps(connection, limit)

    def trained_versions(self, session_id: str) -> list[int]:
        """The published versions that a session's turns were trained into."""
        with transaction(self._engine) as connection:
            return training.trained_versions(connection, session_id)

    def versions_of_turns(self, turn_ids: Sequence[str]) -> dict[str, int]:
        """turn -> the published version that it was trained into; untrained turns are absent."""
        with transaction(self._engine) as connection:
            return training.versions_of_turns(connection, turn_ids)

    # --- administration ---

    def forget(self, session_id: str) -> Forgotten:
        """Delete a session with all that hangs on it, in the file and in its log."""
        with write_transaction(self._engine) as connection:
            result = admin.forget(connection, session_id)
        return dataclasses.replace(result, purged=self._empty_log())

    def _empty_log(self) -> bool:
        """SQLite: move the log into the file and cut it to nothing, for old pages linger in it."""
        if self._engine.dialect.name != "sqlite":
            return False
        deadline = time.monotonic() + 2.0
        while True:
            with translated(self._engine), self._engine.connect() as connection:
                raw: Any = connection.connection.driver_connection
                busy, _, _ = raw.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
            if not busy:
                return True
            if time.monotonic() > deadline:
                return False
            time.sleep(0.05)

    def session_records(
        self, session_id: str | None = None
    ) -> list[tuple[NewSession, tuple[SessionEvent, ...]]]:
        """One session or all, oldest first, with their events; for export."""
        with transaction(self._engine) as connection:
            return reading.session_records(connection, session_id)

    def import_turn(self, item: ImportedTurn) -> bool:
        """Add a turn with all that is known of it; False when it is there already."""
        with write_transaction(self._engine) as connection:
            return signals.import_turn(connection, item)

    def schema_version(self) -> str:
        with transaction(self._engine) as connection:
            return current_revision(connection) or "none"

    def integrity_check(self) -> str:
        """ "ok", or one fault a line: damaged pages, rows without their parents, queues that differ from the
        facts.
        """
        try:
            with transaction(self._engine) as connection:
                return "\n".join(admin.check(connection)) or "ok"
        except StoreError as error:
            return str(error)
