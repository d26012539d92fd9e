"""Exactly once: claim, then finish or let go. Functions on a transaction.

A claim is one transaction: a step, and one `use` row per turn. The primary key of `use` is the turn, so that
no two steps can hold it, whatever happens. A crash leaves a step without a result; the learner finds it in
`open_steps` and finishes it as published (its version is on disk) or abandoned (it is not).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from json import loads
from typing import Any

import sqlalchemy as sa

from stereorl.data import Sample
from stereorl.errors import MisalignedError, NotFoundError, StoreError
from stereorl.store import reading, replays, signals, state
from stereorl.store.codec import dump_metrics
from stereorl.store.engine import insert_missing
from stereorl.store.records import Claim, OpenStep, Outcome, Ready, StepRow
from stereorl.store.schema import drop, sample_state, step_result, train_step, turn, use, version
from stereorl.store.schema import replay as replay_table

log = logging.getLogger(__name__)


def ready(connection: sa.Connection) -> Ready:
    query = sa.select(sa.func.count(), sa.func.min(sample_state.c.since)).where(
        sample_state.c.stage == "ready"
    )
    return Ready(*connection.execute(query).one())


def trim_ready(connection: sa.Connection, keep: int) -> int:
    """Drop by name all ready samples but the newest `keep`; returns how many."""
    beyond = (
        sa.select(sample_state.c.turn_id)
        .where(sample_state.c.stage == "ready")
        .order_by(sample_state.c.seq.desc())
        .offset(keep)
        .with_for_update(skip_locked=True, of=sample_state)
    )
    turn_ids = list(connection.execute(beyond).scalars())
    now = time.time()
    rows = [{"turn_id": key, "stage": "ready", "reason": "buffer_full", "at": now} for key in turn_ids]
    insert_missing(connection, drop, rows)
    state.refresh(connection, turn_ids)
    return len(turn_ids)


def claim(
    connection: sa.Connection, n: int, parent_version: int, *, replay: int = 0, oldest_version: int = 0
) -> Claim | None:
    """The `n` oldest samples, or as many as there are, now held by a new step; None when there are none. With
    them up to `replay` turns that were trained before.
    """
    rows = connection.execute(claim_query(n)).all()
    samples = [sample for row in rows if (sample := _sample(connection, row))]
    if not samples:
        return None
    step = {"parent_version": parent_version, "n": len(samples), "at": time.time()}
    key = connection.execute(sa.insert(train_step).values(step)).inserted_primary_key
    assert key is not None
    step_id = int(key[0])
    turn_ids = [sample.turn.turn_id for sample in samples]
    uses = [{"turn_id": turn_id, "step_id": step_id, "position": k} for k, turn_id in enumerate(turn_ids)]
    connection.execute(sa.insert(use), uses)
    state.refresh(connection, turn_ids)
    replayed = replays.draw(connection, step_id, replay, oldest_version) if replay else ()
    return Claim(step_id, tuple(samples), replayed)


def claim_query(n: int) -> sa.Select[Any]:
    """PostgreSQL: samples that another claim is taking at this moment are passed over, not waited for."""
    return signals.queue("ready", n).with_for_update(skip_locked=True, of=sample_state)


def _sample(connection: sa.Connection, row: Any) -> Sample | None:
    """A turn that cannot be read must not block the queue for ever: it is dropped by name."""
    try:
        return reading.sample_of(connection, row)
    except (MisalignedError, ValueError):
        reason = {"turn_id": row.turn_id, "stage": "ready", "reason": "misaligned", "at": time.time()}
        insert_missing(connection, drop, [reason])
        state.refresh(connection, [row.turn_id])
        return None


def finish_step(
    connection: sa.Connection,
    step_id: int,
    outcome: Outcome,
    version_id: int | None,
    metrics: Mapping[str, Any],
) -> bool:
    """False, and nothing written, when the step has this outcome. StoreError when it has another one."""
    assert outcome != "published" or version_id is not None, "a published step has a version"
    if outcome == "abandoned":
        version_id = None  # its number goes to the next step
    row = connection.execute(
        sa.select(train_step).where(train_step.c.step_id == step_id).with_for_update()
    ).one_or_none()
    if row is None:
        raise NotFoundError(f"There is no step {step_id}.")
    now = time.time()
    text = dump_metrics(metrics)
    result = {"step_id": step_id, "outcome": outcome, "version": version_id, "metrics": text, "at": now}
    if not insert_missing(connection, step_result, [result]):
        return _check_outcome(connection, step_id, outcome, version_id)
    if version_id is not None:
        made = {"version": version_id, "parent": row.parent_version, "step_id": step_id, "status": outcome}
        if not insert_missing(connection, version, [{**made, "created_at": now}]):
            log.warning("Version %d is on record already; step %d made it anew.", version_id, step_id)
    turn_ids = _turns_of(connection, step_id)
    state.lock(connection, turn_ids)
    if outcome == "abandoned":
        connection.execute(sa.delete(use).where(use.c.step_id == step_id))
    elif outcome == "rejected":
        reasons = [
            {"turn_id": key, "stage": "used", "reason": "gate_rejected", "at": now} for key in turn_ids
        ]
        insert_missing(connection, drop, reasons)
    state.refresh(connection, turn_ids)
    return True


def _check_outcome(connection: sa.Connection, step_id: int, outcome: Outcome, version_id: int | None) -> bool:
    query = sa.select(step_result.c.outcome, step_result.c.version).where(step_result.c.step_id == step_id)
    found = connection.execute(query).one()
    if tuple(found) != (outcome, version_id):
        raise StoreError(
            f"Step {step_id} is {found.outcome} (version {found.version}) and cannot become {outcome} "
            f"(version {version_id}). Are two learners at work on this store?"
        )
    return False


def _turns_of(connection: sa.Connection, step_id: int) -> list[str]:
    query = sa.select(use.c.turn_id).where(use.c.step_id == step_id).order_by(use.c.position)
    return list(connection.execute(query).scalars())


def open_steps(connection: sa.Connection) -> list[OpenStep]:
    query = (
        sa.select(train_step)
        .where(~sa.exists().where(step_result.c.step_id == train_step.c.step_id))
        .order_by(train_step.c.step_id)
    )
    return [
        OpenStep(row.step_id, row.parent_version, tuple(_turns_of(connection, row.step_id)))
        for row in connection.execute(query).all()
    ]


def steps(connection: sa.Connection, limit: int) -> list[StepRow]:
    """The last `limit` steps, oldest first."""
    query = (
        sa.select(train_step, step_result.c.outcome, step_result.c.version, step_result.c.metrics)
        .outerjoin(step_result, step_result.c.step_id == train_step.c.step_id)
        .order_by(train_step.c.step_id.desc())
        .limit(limit)
    )
    return [
        StepRow(
            step_id=row.step_id,
            at=row.at,
            outcome=row.outcome,
            version=row.version,
            n=row.n,
            metrics=loads(row.metrics) if row.metrics else {},
            parent_version=row.parent_version,
        )
        for row in reversed(connection.execute(query).all())
    ]


def versions_of_turns(connection: sa.Connection, turn_ids: Sequence[str]) -> dict[str, int]:
    """turn -> the published version that it was trained into, for those that were."""
    found: dict[str, int] = {}
    for ids in state.chunks(turn_ids):
        query = _trained().where(use.c.turn_id.in_(ids))
        found.update({row[0]: row[1] for row in connection.execute(query)})
    return found


def trained_versions(connection: sa.Connection, session_id: str) -> list[int]:
    """Those that a session's turns were trained into, for the first time or again."""
    found: set[int] = set()
    for table in (use, replay_table):
        of_turn = _trained(table).join(turn, turn.c.turn_id == table.c.turn_id)
        rows = connection.execute(of_turn.where(turn.c.session_id == session_id))
        found.update(number for _, number in rows)
    return sorted(found)


def _trained(table: sa.Table = use) -> sa.Select[Any]:
    return (
        sa.select(table.c.turn_id, step_result.c.version)
        .join(step_result, step_result.c.step_id == table.c.step_id)
        .where(step_result.c.outcome == "published")
    )
