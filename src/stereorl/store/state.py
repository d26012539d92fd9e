"""Where each turn stands, worked out from the facts; the queues read the result.

    captured ──next state/feedback──▶ judge ──verdict──▶ score ──teacher score──▶ ready ──claim──▶ used ──▶ final
                                        │                  ├──unscored, a reward─▶ ready ◀─abandoned─┘
                                        │                  └──unscored, no reward──▶ dropped: final
                                        ├──no accepted hint, a reward───────────▶ ready
                                        └──no accepted hint, no reward──▶ signalless ──▶ dropped: final

`refresh` is called in the transaction that adds facts about a turn. There is no other place that decides a
stage, so the derived rows cannot drift from the facts. A final turn (trained, rejected, dropped) and a side
turn have no row.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

import sqlalchemy as sa

from stereorl.store.engine import insert_missing
from stereorl.store.schema import (
    drop,
    feedback,
    hint,
    next_state,
    sample_state,
    session,
    session_event,
    session_state,
    step_result,
    teacher_score,
    turn,
    unscored,
    use,
    verdict,
)

CHUNK = 400  # ids in one IN list; SQLite's limit on variables is far above
LEARNER_STAGES = ("judge", "score", "ready", "signalless", "used")


def expected_stages() -> sa.Select[Any]:
    """(turn_id, seq, stage) of every main turn, from the facts alone; stage NULL: final."""

    def some(table: sa.Table, *conditions: sa.ColumnElement[bool]) -> sa.ColumnElement[bool]:
        return sa.exists().where(table.c.turn_id == turn.c.turn_id, *conditions).correlate(turn)

    finished = sa.exists().where(use.c.turn_id == turn.c.turn_id, step_result.c.step_id == use.c.step_id)
    hinted = sa.and_(some(verdict), some(hint, hint.c.accepted.is_(True)), ~some(unscored))
    rewarded = some(verdict, verdict.c.reward.is_not(None))
    stage = sa.case(
        (some(drop), sa.null()),
        (finished.correlate(turn), sa.null()),
        (some(use), "used"),
        (some(teacher_score), "ready"),
        (hinted, "score"),
        (rewarded, "ready"),
        (some(verdict), "signalless"),
        (sa.or_(some(next_state), some(feedback)), "judge"),
        else_="captured",
    )
    return sa.select(turn.c.turn_id, turn.c.seq, stage.label("stage")).where(turn.c.kind == "main")


def lock(connection: sa.Connection, turn_ids: Iterable[str]) -> None:
    """PostgreSQL: nobody else moves these turns until we commit. (SQLite has one writer at a time.)"""
    if connection.dialect.name != "sqlite":
        for ids in chunks(turn_ids):
            connection.execute(
                sa.select(sample_state.c.turn_id)
                .where(sample_state.c.turn_id.in_(ids))
                .order_by(sample_state.c.turn_id)
                .with_for_update()
            )


def refresh(connection: sa.Connection, turn_ids: Iterable[str]) -> None:
    """Bring the derived rows of these turns up to date with their facts. `since` is when the stage was
    reached; a claim that is abandoned does not reset it.
    """
    now = time.time()
    for ids in chunks(turn_ids):
        lock(connection, ids)
        found = {row.turn_id: row for row in connection.execute(_STAGES_OF, {"ids": ids})}
        old = {row[0]: row[1] for row in connection.execute(_KNOWN_STAGES_OF, {"ids": ids})}
        gone = [key for key in old if key not in found or found[key].stage is None]
        _delete(connection, gone)
        _move(connection, old, {key: row.stage for key, row in found.items() if row.stage is not None}, now)
        new = [row for key, row in found.items() if row.stage is not None and key not in old]
        insert_missing(connection, sample_state, [{**row._mapping, "since": now} for row in new])


def _delete(connection: sa.Connection, turn_ids: list[str]) -> None:
    if turn_ids:
        connection.execute(sa.delete(sample_state).where(sample_state.c.turn_id.in_(turn_ids)))


def _move(connection: sa.Connection, old: dict[str, str], new: dict[str, str], now: float) -> None:
    moves: dict[tuple[str, bool], list[str]] = {}
    for key, stage in new.items():
        if key in old and old[key] != stage:
            keep = "used" in (old[key], stage)
            moves.setdefault((stage, keep), []).append(key)
    for (stage, keep), ids in moves.items():
        values = {"stage": stage} if keep else {"stage": stage, "since": now}
        connection.execute(sa.update(sample_state).where(sample_state.c.turn_id.in_(ids)).values(values))


def expected_sessions() -> sa.Select[Any]:
    """(session_id, open, reason, last_at) of every session, from the facts alone. The last event decides."""
    last_event = (
        sa.select(session_event.c.id)
        .where(session_event.c.session_id == session.c.session_id)
        .order_by(session_event.c.id.desc())
        .limit(1)
        .correlate(session)
        .scalar_subquery()
    )
    last_turn = (
        sa.select(sa.func.max(turn.c.created_at))
        .where(turn.c.session_id == session.c.session_id)
        .correlate(session)
        .scalar_subquery()
    )
    closed = session_event.c.kind == "closed"
    return sa.select(
        session.c.session_id,
        sa.case((closed, sa.false()), else_=sa.true()).label("open"),
        sa.case((closed, session_event.c.reason), else_=sa.null()).label("reason"),
        sa.func.coalesce(last_turn, session.c.created_at).label("last_at"),
    ).select_from(session.outerjoin(session_event, session_event.c.id == last_event))


def refresh_sessions(connection: sa.Connection, session_ids: Iterable[str]) -> None:
    """Bring the derived rows of these sessions up to date with their facts."""
    for ids in chunks(session_ids):
        rows = connection.execute(_SESSIONS_OF, {"ids": ids}).mappings().all()
        insert_missing(connection, session_state, [dict(row) for row in rows])
        for row in rows:
            update = sa.update(session_state).where(session_state.c.session_id == row["session_id"])
            connection.execute(update.values(open=row["open"], reason=row["reason"], last_at=row["last_at"]))


# Built once: putting them together costs more than running them.
_IDS: sa.BindParameter[Any] = sa.bindparam("ids", expanding=True)
_STAGES_OF = expected_stages().where(turn.c.turn_id.in_(_IDS))
_KNOWN_STAGES_OF = sa.select(sample_state.c.turn_id, sample_state.c.stage).where(
    sample_state.c.turn_id.in_(_IDS)
)
_SESSIONS_OF = expected_sessions().where(session.c.session_id.in_(_IDS))


def chunks(ids: Iterable[str]) -> Iterable[list[str]]:
    """Distinct ids in a fixed order (so that two transactions lock alike), in pieces."""
    ordered = sorted(set(ids))
    for start in range(0, len(ordered), CHUNK):
        yield ordered[start : start + CHUNK]
