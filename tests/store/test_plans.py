"""What serving and learning ask all day goes through an index, and is SQL that PostgreSQL understands too."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.dialects import postgresql, sqlite

from stereorl.data import Feedback
from stereorl.store import NewSession, SessionEvent, Store, schema
from stereorl.store.engine import insert_ignore
from tests.store.build import BAD, HINT, fill, followed, make_ready, make_turn, score_of

Act = Callable[[Store], object]


def _claim_and_finish(store: Store) -> None:
    for outcome in ("abandoned", "rejected", "published"):
        claim = store.claim(1, parent_version=0)
        assert claim is not None
        store.finish_step(claim.step_id, outcome, version=claim.step_id, metrics={})  # type: ignore[arg-type]


def _judge(store: Store) -> None:
    store.record_judgement("judge", BAD, [HINT])
    store.record_teacher_score(score_of(store.turn("judge")))


def _cannot_score(store: Store) -> None:
    store.record_judgement("judge", BAD, [HINT])
    store.record_unscored("judge", "hint_over_context")


def _replay(store: Store) -> None:
    for replay in (0, 4):
        claim = store.claim(1, parent_version=0, replay=replay)
        assert claim is not None
        assert len(claim.replayed) == min(replay, 1)
        store.finish_step(claim.step_id, "published", version=claim.step_id, metrics={})


OFTEN: dict[str, Act] = {
    "put": lambda s: s.put(
        [NewSession("new", 1.0, "new"), make_turn("n", "new"), followed("n"), Feedback("n", 1, None, 1.0)]
    ),
    "close": lambda s: s.put([SessionEvent("s0", "closed", "idle", 1.0)]),
    "reopen": lambda s: s.put([make_turn("n", "closed", index=2)]),
    "continuation": lambda s: s.continuation("key"),
    "same_prompt": lambda s: s.same_prompt("key"),
    "last_main_turn": lambda s: s.last_main_turn("s0"),
    "idle_sessions": lambda s: s.idle_sessions(0.0),
    "turn": lambda s: s.turn("judge"),
    "detail": lambda s: s.detail("r0"),
    "session_turns": lambda s: s.session_turns("s0"),
    "judge_queue": lambda s: s.judge_queue(),
    "judge_queue but": lambda s: s.judge_queue(skip=["r0"]),
    "judge_queue only": lambda s: s.judge_queue(only=["judge"]),
    "orphan_queue": lambda s: s.orphan_queue(),
    "signalless": lambda s: s.signalless(),
    "score_queue": lambda s: s.score_queue(),
    "judge": _judge,
    "unscored": _cannot_score,
    "trim": lambda s: s.trim_ready(1),
    "replay": _replay,
    "drop": lambda s: s.drop("judge", "judge", "x"),
    "ready": lambda s: s.ready(),
    "claim and finish": _claim_and_finish,
    "versions_of_turns": lambda s: s.versions_of_turns(["r0"]),
    "trained_versions": lambda s: s.trained_versions("s0"),
    "forget": lambda s: s.forget("ready"),
}
SELDOM: dict[str, Act] = {
    "sessions": lambda s: s.sessions(),
    "funnel": lambda s: s.funnel(),
    "score_over_time": lambda s: s.score_over_time(),
    "find_turn": lambda s: s.find_turn("judge"),
    "open_steps": lambda s: s.open_steps(),
    "steps": lambda s: s.steps(),
    "records": lambda s: s.session_records(),
    "check": lambda s: s.integrity_check(),
}


def _populate(store: Store) -> None:
    fill(store, ["judge", "next"])
    make_ready(store, ["r0", "r1", "r2"], "ready")
    fill(store, ["score"], "scoring")
    store.record_judgement("score", BAD, [HINT])
    store.put(
        [
            NewSession("closed", 1.0, "new"),
            make_turn("c", "closed"),
            SessionEvent("closed", "closed", "x", 2.0),
        ]
    )


@pytest.mark.parametrize("name", OFTEN)
def test_no_table_is_scanned(store: Store, name: str) -> None:
    if store._engine.dialect.name != "sqlite":
        pytest.skip("SQLite's plans")
    _populate(store)
    asked: list[tuple[str, Any]] = []

    @event.listens_for(store._engine, "before_cursor_execute")
    def _note(_c: Any, _cursor: Any, statement: str, parameters: Any, _context: Any, many: bool) -> None:
        asked.append((statement, parameters[0] if many else parameters))

    OFTEN[name](store)
    event.remove(store._engine, "before_cursor_execute", _note)
    scans = []
    with store._engine.connect() as connection:
        for statement, parameters in asked:
            if statement.split()[0] in ("SELECT", "INSERT", "UPDATE", "DELETE", "WITH"):
                plan = connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", parameters)
                scans += [f"{row.detail}: {statement}" for row in plan if _scans_a_table(row.detail)]
    assert asked
    assert scans == []


def _scans_a_table(detail: str) -> bool:
    words = detail.split()
    return words[0] == "SCAN" and words[1] in schema.metadata.tables


def test_a_plan_without_index_would_be_noticed() -> None:
    assert _scans_a_table("SCAN turn")
    assert not _scans_a_table("SEARCH turn USING INDEX ix (a=?)")


@pytest.mark.parametrize("name", [*OFTEN, *SELDOM])
def test_every_statement_compiles_for_postgresql(store: Store, name: str) -> None:
    _populate(store)
    asked: list[Any] = []
    event.listen(store._engine, "before_execute", lambda _c, statement, *_: asked.append(statement))
    (OFTEN | SELDOM)[name](store)
    assert asked
    for statement in asked:
        if isinstance(statement, str):
            assert "PRAGMA" in statement or statement.startswith(("BEGIN", "COMMIT"))
        elif isinstance(statement, sqlite.Insert):
            assert "ON CONFLICT DO NOTHING" in _postgres(insert_ignore(statement.table, "postgresql"))  # type: ignore[arg-type]
        else:
            assert _postgres(statement)


def _postgres(statement: sa.ClauseElement) -> str:
    return str(statement.compile(dialect=postgresql.dialect()))


def test_claim_skips_what_another_learner_holds() -> None:
    from stereorl.store.training import claim_query

    assert "FOR UPDATE OF sample_state SKIP LOCKED" in _postgres(claim_query(4))
