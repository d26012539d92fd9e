"""Writing down what happened: sessions, turns and what followed them. Functions on a transaction.

Every record may come twice (a retry, an import): the second time changes nothing.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from functools import singledispatch

import sqlalchemy as sa

from stereorl.data import Feedback, Message, NextState, Turn
from stereorl.data.message import chain_key
from stereorl.errors import NotFoundError, StoreError
from stereorl.store import state
from stereorl.store.codec import (
    digest_of,
    dump_sampling,
    node_of,
    pack_floats,
    pack_ints,
    part_of,
    tools_part,
)
from stereorl.store.engine import insert_missing
from stereorl.store.records import Drop, NewSession, Record, SessionEvent
from stereorl.store.schema import (
    context,
    drop,
    feedback,
    next_state,
    part,
    sample_state,
    session,
    session_event,
    turn,
)

UNTRAINABLE = ("cancelled", "error")  # finish reasons


def put(connection: sa.Connection, records: Iterable[Record]) -> None:
    """Insert the records in order, then bring the derived rows up to date.

    NotFoundError: a record names a session or turn that is not there. StoreError: a turn's id is taken by
    another turn. MisalignedError: an array does not fit its column.
    """
    turn_ids: set[str] = set()
    session_ids: set[str] = set()
    for record in records:
        if isinstance(record, Drop):
            state.refresh(connection, turn_ids)  # whether a drop counts depends on what came before it
        _add(record, connection)
        if isinstance(record, Turn | NextState | Feedback | Drop):
            turn_ids.add(record.turn_id)
        if isinstance(record, NewSession | SessionEvent | Turn):
            session_ids.add(record.session_id)
    state.refresh(connection, turn_ids)
    state.refresh_sessions(connection, session_ids)


@singledispatch
def _add(record: object, connection: sa.Connection) -> None:
    raise TypeError(f"{type(record).__name__} is no record of the store.")


@_add.register
def _(record: NewSession, connection: sa.Connection) -> None:
    row = {
        "session_id": record.session_id,
        "created_at": record.created_at,
        "origin": record.origin,
        "forked_from": record.forked_from,
    }
    insert_missing(connection, session, [row])


@_add.register
def _(record: SessionEvent, connection: sa.Connection) -> None:
    require(connection, session.c.session_id, record.session_id)
    row = {"session_id": record.session_id, "kind": record.kind, "reason": record.reason, "at": record.at}
    insert_missing(connection, session_event, [{"digest": digest_of(*row.values()), **row}])


@_add.register
def _(record: Turn, connection: sa.Connection) -> None:
    require(connection, session.c.session_id, record.session_id)
    prompt_node, reply_node = add_context(connection, [*record.messages, record.reply])
    tools = tools_part(record.tools)
    if tools is not None:
        insert_missing(connection, part, [{"digest": tools[0], "body": tools[1]}])
    row = _turn_row(record) | {
        "prompt_node": prompt_node,
        "reply_node": reply_node,
        "tools": tools[0] if tools else None,
    }
    if not insert_missing(connection, turn, [row]):
        _check_same(connection, record, row["reply_node"], row["response_ids"])
        return
    _reopen(connection, record)
    if record.kind == "main" and (record.finish_reason in UNTRAINABLE or not len(record.response_ids)):
        reason = record.finish_reason if record.finish_reason in UNTRAINABLE else "empty_reply"
        _insert_drop(connection, Drop(record.turn_id, "captured", reason))


def _turn_row(record: Turn) -> dict[str, object]:
    return {
        "turn_id": record.turn_id,
        "session_id": record.session_id,
        "position": record.index,
        "kind": record.kind,
        "prompt_key": chain_key(record.messages),
        "reply_key": chain_key([*record.messages, record.reply]),
        "prompt_ids": pack_ints(record.prompt_ids, f"prompt_ids of turn {record.turn_id}"),
        "response_ids": pack_ints(record.response_ids, f"response_ids of turn {record.turn_id}"),
        "log_probs": pack_floats(record.log_probs, f"log_probs of turn {record.turn_id}"),
        "versions": pack_ints(record.versions, f"versions of turn {record.turn_id}"),
        "sampling": dump_sampling(record.sampling),
        "finish_reason": record.finish_reason,
        "model": record.model,
        "created_at": record.created_at,
        "parent_turn_id": record.parent_turn_id,
    }


def _check_same(connection: sa.Connection, record: Turn, reply_node: object, response_ids: object) -> None:
    """A turn that comes again is ignored; another turn under its id is refused."""
    query = sa.select(turn.c.reply_node, turn.c.response_ids).where(turn.c.turn_id == record.turn_id)
    if tuple(connection.execute(query).one()) != (reply_node, response_ids):
        raise StoreError(
            f"Turn id {record.turn_id} is taken by a different turn. Give each turn an id of its own."
        )


def _reopen(connection: sa.Connection, record: Turn) -> None:
    """A turn in a closed session opens it again."""
    query = (
        sa.select(session_event.c.kind)
        .where(session_event.c.session_id == record.session_id)
        .order_by(session_event.c.id.desc())
        .limit(1)
    )
    if connection.execute(query).scalar() == "closed":
        _add(
            SessionEvent(record.session_id, "reopened", f"turn {record.turn_id}", record.created_at),
            connection,
        )


@_add.register
def _(record: NextState, connection: sa.Connection) -> None:
    require(connection, turn.c.turn_id, record.turn_id)
    _, node = add_context(connection, record.messages)
    row = {"turn_id": record.turn_id, "kind": record.kind, "node": node, "created_at": record.created_at}
    insert_missing(connection, next_state, [{"digest": digest_of(*row.values()), **row}])


@_add.register
def _(record: Feedback, connection: sa.Connection) -> None:
    require(connection, turn.c.turn_id, record.turn_id)
    row = {
        "turn_id": record.turn_id,
        "score": record.score,
        "correction": record.correction,
        "created_at": record.created_at,
    }
    insert_missing(connection, feedback, [{"digest": digest_of(*row.values()), **row}])


@_add.register
def _(record: Drop, connection: sa.Connection) -> None:
    """Only a turn that still waits can be dropped: not a side turn, nor one in a step, trained, or dropped
    before.
    """
    require(connection, turn.c.turn_id, record.turn_id)
    state.lock(connection, [record.turn_id])
    query = sa.select(sample_state.c.stage).where(sample_state.c.turn_id == record.turn_id)
    if connection.execute(query).scalar() not in (None, "used"):
        _insert_drop(connection, record)


def _insert_drop(connection: sa.Connection, record: Drop) -> None:
    row = {"turn_id": record.turn_id, "stage": record.stage, "reason": record.reason, "at": time.time()}
    insert_missing(connection, drop, [row])


def require(connection: sa.Connection, column: sa.ColumnElement[str], key: str) -> None:
    """NotFoundError unless `key` is in `column`."""
    if connection.execute(sa.select(sa.literal(1)).where(column == key)).scalar() is None:
        what = "session" if column is session.c.session_id else "turn"
        raise NotFoundError(f"There is no {what} '{key}' in the store.")


def add_context(connection: sa.Connection, messages: Sequence[Message]) -> tuple[bytes | None, bytes | None]:
    """The nodes of the last message but one and of the last, after adding all that are missing."""
    nodes: dict[bytes, tuple[bytes | None, bytes, str]] = {}
    parent, last = None, None
    for message in messages:
        digest, body = part_of(message)
        parent, last = last, node_of(last, digest)
        nodes[last] = (parent, digest, body)
    known: set[bytes] = set()
    keys = list(nodes)
    for start in range(0, len(keys), state.CHUNK):
        found = connection.execute(_KNOWN_NODES, {"keys": keys[start : start + state.CHUNK]}).scalars()
        known.update(bytes(key) for key in found)
    missing = [(node, *fields) for node, fields in nodes.items() if node not in known]
    insert_missing(connection, part, [{"digest": digest, "body": body} for _, _, digest, body in missing])
    insert_missing(
        connection, context, [{"node": node, "parent": up, "part": digest} for node, up, digest, _ in missing]
    )
    return parent, last


_KNOWN_NODES = sa.select(context.c.node).where(context.c.node.in_(sa.bindparam("keys", expanding=True)))
