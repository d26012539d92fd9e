"""Counting, checking and forgetting. Functions on a transaction."""

from __future__ import annotations

import time
from typing import Any

import sqlalchemy as sa

from stereorl.errors import NotFoundError
from stereorl.store import schema, state, training
from stereorl.store.records import Forgotten, Funnel
from stereorl.store.schema import (
    context,
    next_state,
    part,
    sample_state,
    session,
    step_result,
    turn,
    use,
    verdict,
)


def funnel(connection: sa.Connection) -> Funnel:
    kinds = _groups(connection, turn.c.kind)
    stages = _groups(connection, sample_state.c.stage)
    oldest = sa.select(sa.func.min(sample_state.c.since)).where(
        sample_state.c.stage.in_(state.LEARNER_STAGES)
    )
    since = connection.execute(oldest).scalar()
    trained = sa.select(sa.func.count()).select_from(
        use.join(step_result, step_result.c.step_id == use.c.step_id)
    )
    hinted = sa.select(sa.func.count(schema.hint.c.turn_id.distinct())).where(
        schema.hint.c.accepted.is_(True)
    )
    return Funnel(
        captured=kinds.get("main", 0),
        side=kinds.get("side", 0),
        judged=_count(connection, verdict),
        hinted=connection.execute(hinted).scalar_one(),
        scored=_count(connection, schema.teacher_score),
        trained=connection.execute(trained.where(step_result.c.outcome == "published")).scalar_one(),
        waiting=sum(stages.values()),
        dropped=_groups(connection, schema.drop.c.reason),
        rewards={-1: 0, 0: 0, 1: 0} | _groups(connection, verdict.c.reward, verdict.c.reward.is_not(None)),
        forks=_count(connection, session, session.c.forked_from.is_not(None)),
        sessions=_count(connection, session),
        steps=_count(connection, step_result, step_result.c.outcome == "published"),
        oldest_waiting_s=None if since is None else max(0.0, time.time() - since),
        stages=stages,
        unscored=_groups(connection, schema.unscored.c.reason),
        replayed=_replayed(connection),
    )


def _replayed(connection: sa.Connection) -> int:
    steps = schema.replay.join(step_result, step_result.c.step_id == schema.replay.c.step_id)
    query = sa.select(sa.func.count()).select_from(steps).where(step_result.c.outcome == "published")
    return int(connection.execute(query).scalar_one())


def _count(connection: sa.Connection, table: sa.Table, *conditions: sa.ColumnElement[bool]) -> int:
    return int(
        connection.execute(sa.select(sa.func.count()).select_from(table).where(*conditions)).scalar_one()
    )


def _groups(
    connection: sa.Connection, column: sa.Column[Any], *conditions: sa.ColumnElement[bool]
) -> dict[Any, int]:
    query = sa.select(column, sa.func.count()).where(*conditions).group_by(column).order_by(column)
    return {row[0]: row[1] for row in connection.execute(query)}


def score_over_time(connection: sa.Connection, bucket: int) -> list[tuple[float, float, int]]:
    """(time of the last turn, mean reward, n) over each `bucket` rewarded turns in a row; the last may be
    smaller.
    """
    assert bucket > 0
    query = (
        sa.select(turn.c.created_at, verdict.c.reward)
        .join(verdict, verdict.c.turn_id == turn.c.turn_id)
        .where(verdict.c.reward.is_not(None))
        .order_by(turn.c.seq)
    )
    rows = connection.execute(query).all()
    pieces = [rows[start : start + bucket] for start in range(0, len(rows), bucket)]
    return [(piece[-1][0], sum(reward for _, reward in piece) / len(piece), len(piece)) for piece in pieces]


def forget(connection: sa.Connection, session_id: str) -> Forgotten:
    """Delete all rows of a session, and the messages that no other session shares."""
    if connection.execute(sa.select(session).where(session.c.session_id == session_id)).first() is None:
        raise NotFoundError(f"There is no session '{session_id}'. `stereorl sessions` lists them.")
    rows = connection.execute(
        sa.select(turn.c.turn_id, turn.c.reply_node, turn.c.tools).where(turn.c.session_id == session_id)
    ).all()
    turn_ids = [row.turn_id for row in rows]
    forks = (
        sa.select(session.c.session_id)
        .where(session.c.forked_from == session_id)
        .order_by(session.c.created_at)
    )
    result = Forgotten(
        session_id=session_id,
        turns=len(rows),
        versions=tuple(training.trained_versions(connection, session_id)),
        open_steps=tuple(_open_steps(connection, session_id)),
        forks=tuple(connection.execute(forks).scalars()),
        purged=False,
    )
    nodes = {row.reply_node for row in rows} | _following_nodes(connection, turn_ids)
    _delete_rows(connection, session_id, turn_ids)
    parts = _delete_nodes(connection, nodes) | {row.tools for row in rows if row.tools is not None}
    _delete_parts(connection, parts)
    return result


def _open_steps(connection: sa.Connection, session_id: str) -> list[int]:
    found: set[int] = set()
    for table in (use, schema.replay):
        query = (
            sa.select(table.c.step_id)
            .join(turn, turn.c.turn_id == table.c.turn_id)
            .where(turn.c.session_id == session_id)
            .where(~sa.exists().where(step_result.c.step_id == table.c.step_id))
        )
        found.update(connection.execute(query).scalars())
    return sorted(found)


def _following_nodes(connection: sa.Connection, turn_ids: list[str]) -> set[bytes]:
    nodes: set[bytes] = set()
    for ids in state.chunks(turn_ids):
        query = sa.select(next_state.c.node).where(
            next_state.c.turn_id.in_(ids), next_state.c.node.is_not(None)
        )
        nodes.update(connection.execute(query).scalars())
    return nodes


def _delete_rows(connection: sa.Connection, session_id: str, turn_ids: list[str]) -> None:
    of_turns = (
        schema.sample_state,
        schema.use,
        schema.replay,
        schema.drop,
        schema.feedback,
        schema.unscored,
        schema.teacher_score,
        schema.hint,
        schema.vote,
        schema.verdict,
        schema.next_state,
        schema.turn,
    )
    for ids in state.chunks(turn_ids):
        for table in of_turns:
            connection.execute(sa.delete(table).where(table.c.turn_id.in_(ids)))
    for table in (schema.session_state, schema.session_event, schema.session):
        connection.execute(sa.delete(table).where(table.c.session_id == session_id))


def _delete_nodes(connection: sa.Connection, nodes: set[bytes]) -> set[bytes]:
    """Cut the branches that end in `nodes`, up to where something else hangs on; returns the parts they used."""
    wanted = (
        sa.exists().where(turn.c.reply_node == sa.bindparam("key")),
        sa.exists().where(turn.c.prompt_node == sa.bindparam("key")),
        sa.exists().where(next_state.c.node == sa.bindparam("key")),
        sa.exists().where(context.c.parent == sa.bindparam("key")),
    )
    in_use = sa.select(sa.or_(*wanted))
    parts: set[bytes] = set()
    pending: list[bytes | None] = list(nodes)
    while pending:
        node = pending.pop()
        if node is None or connection.execute(in_use, {"key": node}).scalar():
            continue
        row = connection.execute(sa.select(context).where(context.c.node == node)).one_or_none()
        if row is not None:
            connection.execute(sa.delete(context).where(context.c.node == node))
            parts.add(row.part)
            pending.append(row.parent)
    return parts


def _delete_parts(connection: sa.Connection, digests: set[bytes]) -> None:
    in_use = sa.or_(
        sa.exists().where(context.c.part == part.c.digest), sa.exists().where(turn.c.tools == part.c.digest)
    )
    for digest in digests:
        connection.execute(sa.delete(part).where(part.c.digest == digest, ~in_use))


def check(connection: sa.Connection) -> list[str]:
    """What is wrong with the store; nothing when it is sound."""
    faults: list[str] = []
    if connection.dialect.name == "sqlite":
        faults += [row[0] for row in connection.exec_driver_sql("PRAGMA integrity_check") if row[0] != "ok"]
        faults += [
            f"A row of table {row[0]} refers to a missing row of {row[2]}."
            for row in connection.exec_driver_sql("PRAGMA foreign_key_check")
        ]
    return faults + _drift(connection)


def _drift(connection: sa.Connection) -> list[str]:
    """Derived rows that differ from what the facts say."""
    facts = {
        row.turn_id: row.stage for row in connection.execute(state.expected_stages()) if row.stage is not None
    }
    waiting = connection.execute(sa.select(sample_state.c.turn_id, sample_state.c.stage))
    derived = {row[0]: row[1] for row in waiting}
    faults = [
        f"Turn {key} waits in '{derived.get(key)}' where the facts say '{facts.get(key)}'."
        for key in sorted(facts.keys() | derived.keys())
        if facts.get(key) != derived.get(key)
    ]
    expected = {row[0]: tuple(row) for row in connection.execute(state.expected_sessions())}
    table = schema.session_state
    columns = (table.c.session_id, table.c.open, table.c.reason, table.c.last_at)
    found = {row[0]: tuple(row) for row in connection.execute(sa.select(*columns))}
    return faults + [
        f"Session {key} is on record as {found.get(key)} where the facts say {expected.get(key)}."
        for key in sorted(expected.keys() | found.keys())
        if expected.get(key) != found.get(key)
    ]
