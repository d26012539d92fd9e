"""The tables. Rows of all but the last two are facts: written once, removed only by `forget` (and leases,
below).

Messages are content-addressed: `part` holds one message as JSON, `context` a node of a tree of conversations,
so a conversation of n turns costs n nodes and not n^2 / 2 references. A turn points at the node of its reply;
its prompt is the path above. `use` rows are leases: one step holds a turn at a time (primary key), and an
abandoned step lets go; `replay` rows say which trained turns a step drew again. `sample_state` and
`session_state` are derived from the facts, so that queues cost what they return; state.py works them out. The
migrations are the truth about the schema; a test compares them with this module.
"""

from __future__ import annotations

import json
from typing import Any

import sqlalchemy as sa
from sqlalchemy import (
    BigInteger,
    Column,
    Double,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Table,
    Text,
)

HEAD = "0002"  # the newest migration
_MARK = "\x1ajson:"


class AnyText(sa.TypeDecorator[str]):
    """Text that survives lone surrogates and NUL, which SQLite or PostgreSQL refuse: such a string is kept as
    JSON.
    """

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: sa.Dialect) -> str | None:
        if value is None or not ("\0" in value or value.startswith(_MARK) or _has_surrogates(value)):
            return value
        return _MARK + json.dumps(value)

    def process_result_value(self, value: Any | None, dialect: sa.Dialect) -> str | None:
        return json.loads(value[len(_MARK) :]) if value is not None and value.startswith(_MARK) else value


def _has_surrogates(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return True
    return False


metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "fk": "fk_%(table_name)s_%(column_0_name)s",
        "pk": "pk_%(table_name)s",
    }
)
_Serial = BigInteger().with_variant(Integer, "sqlite")  # SQLite numbers rows by itself only for INTEGER


def _serial(name: str) -> Column[int]:
    return Column(name, _Serial, primary_key=True, autoincrement=True)


def _turn_key() -> Column[str]:
    return Column("turn_id", AnyText, ForeignKey("turn.turn_id"), primary_key=True)


session = Table(
    "session",
    metadata,
    Column("session_id", AnyText, primary_key=True),
    Column("created_at", Double, nullable=False),
    Column("origin", Text, nullable=False),
    Column("forked_from", AnyText, index=True),
)
session_event = Table(
    "session_event",
    metadata,
    _serial("id"),
    Column("digest", LargeBinary, nullable=False, unique=True),
    Column("session_id", AnyText, ForeignKey("session.session_id"), nullable=False),
    Column("kind", Text, nullable=False),
    Column("reason", AnyText, nullable=False),
    Column("at", Double, nullable=False),
    Index(None, "session_id", "id"),
)
part = Table(
    "part",
    metadata,
    Column("digest", LargeBinary, primary_key=True),
    Column("body", Text, nullable=False),
)
context = Table(
    "context",
    metadata,
    Column("node", LargeBinary, primary_key=True),
    Column("parent", LargeBinary, ForeignKey("context.node"), index=True),
    Column("part", LargeBinary, ForeignKey("part.digest"), nullable=False, index=True),
    sqlite_with_rowid=False,
)
turn = Table(
    "turn",
    metadata,
    _serial("seq"),
    Column("turn_id", AnyText, nullable=False, unique=True),
    Column("session_id", AnyText, ForeignKey("session.session_id"), nullable=False),
    Column("position", Integer, nullable=False),
    Column("kind", Text, nullable=False),
    Column("prompt_node", LargeBinary, ForeignKey("context.node"), index=True),
    Column("reply_node", LargeBinary, ForeignKey("context.node"), nullable=False, index=True),
    Column("prompt_key", Text, nullable=False),
    Column("reply_key", Text, nullable=False),
    Column("tools", LargeBinary, ForeignKey("part.digest"), index=True),
    Column("prompt_ids", LargeBinary, nullable=False),
    Column("response_ids", LargeBinary, nullable=False),
    Column("log_probs", LargeBinary, nullable=False),
    Column("versions", LargeBinary, nullable=False),
    Column("sampling", Text, nullable=False),
    Column("finish_reason", Text, nullable=False),
    Column("model", AnyText, nullable=False),
    Column("created_at", Double, nullable=False),
    Column("parent_turn_id", AnyText),
    Index(None, "prompt_key", "seq"),
    Index(None, "reply_key", "seq"),
    Index(None, "session_id", "kind", "position"),
    Index(None, "session_id", "created_at"),
)
next_state = Table(
    "next_state",
    metadata,
    _serial("id"),
    Column("digest", LargeBinary, nullable=False, unique=True),
    Column("turn_id", AnyText, ForeignKey("turn.turn_id"), nullable=False, index=True),
    Column("kind", Text, nullable=False),
    Column("node", LargeBinary, ForeignKey("context.node"), index=True),
    Column("created_at", Double, nullable=False),
)
verdict = Table(
    "verdict",
    metadata,
    _turn_key(),
    Column("reward", Integer),
    Column("reason", AnyText, nullable=False),
    Column("at", Double, nullable=False),
)
vote = Table(
    "vote",
    metadata,
    Column("turn_id", AnyText, ForeignKey("verdict.turn_id"), primary_key=True),
    Column("position", Integer, primary_key=True),
    Column("judge", AnyText, nullable=False),
    Column("value", Integer),
    Column("reason", AnyText, nullable=False),
)
hint = Table(
    "hint",
    metadata,
    Column("turn_id", AnyText, ForeignKey("verdict.turn_id"), primary_key=True),
    Column("position", Integer, primary_key=True),
    Column("text", AnyText, nullable=False),
    Column("source", Text, nullable=False),
    Column("accepted", sa.Boolean, nullable=False),
    Column("reason", AnyText, nullable=False),
)
teacher_score = Table(
    "teacher_score",
    metadata,
    _turn_key(),
    Column("hint", AnyText, nullable=False),
    Column("teacher", AnyText, nullable=False),
    Column("temperature", Double, nullable=False),
    Column("log_probs", LargeBinary, nullable=False),
    Column("at", Double, nullable=False),
    Column("top_ids", LargeBinary),
    Column("top_log_probs", LargeBinary),
)
unscored = Table(
    "unscored",
    metadata,
    _turn_key(),
    Column("reason", AnyText, nullable=False),
    Column("at", Double, nullable=False),
)
feedback = Table(
    "feedback",
    metadata,
    _serial("id"),
    Column("digest", LargeBinary, nullable=False, unique=True),
    Column("turn_id", AnyText, ForeignKey("turn.turn_id"), nullable=False, index=True),
    Column("score", Integer),
    Column("correction", AnyText),
    Column("created_at", Double, nullable=False),
)
drop = Table(
    "drop",
    metadata,
    _turn_key(),
    Column("stage", AnyText, nullable=False),
    Column("reason", AnyText, nullable=False),
    Column("at", Double, nullable=False),
)
train_step = Table(
    "train_step",
    metadata,
    _serial("step_id"),
    Column("parent_version", Integer, nullable=False),
    Column("n", Integer, nullable=False),
    Column("at", Double, nullable=False),
    sqlite_autoincrement=True,
)
step_result = Table(
    "step_result",
    metadata,
    Column("step_id", _Serial, ForeignKey("train_step.step_id"), primary_key=True, autoincrement=False),
    Column("outcome", Text, nullable=False),
    Column("version", Integer, index=True),
    Column("metrics", Text, nullable=False),
    Column("at", Double, nullable=False),
)
use = Table(
    "use",
    metadata,
    _turn_key(),
    Column("step_id", _Serial, ForeignKey("train_step.step_id"), nullable=False, index=True),
    Column("position", Integer, nullable=False),
)
replay = Table(
    "replay",
    metadata,
    _turn_key(),
    Column(
        "step_id",
        _Serial,
        ForeignKey("train_step.step_id"),
        primary_key=True,
        autoincrement=False,
        index=True,
    ),
    Column("position", Integer, nullable=False),
)
version = Table(
    "version",
    metadata,
    Column("version", Integer, primary_key=True, autoincrement=False),
    Column("parent", Integer, nullable=False),
    Column("step_id", _Serial, ForeignKey("train_step.step_id")),
    Column("status", Text, nullable=False),
    Column("created_at", Double, nullable=False),
)

# Derived from the rows above.
sample_state = Table(
    "sample_state",
    metadata,
    _turn_key(),
    Column("seq", _Serial, nullable=False),
    Column("stage", Text, nullable=False),
    Column("since", Double, nullable=False),
    Index(None, "stage", "seq"),
)
session_state = Table(
    "session_state",
    metadata,
    Column("session_id", AnyText, ForeignKey("session.session_id"), primary_key=True),
    Column("open", sa.Boolean, nullable=False),
    Column("reason", AnyText),
    Column("last_at", Double, nullable=False),
    Index(None, "open", "last_at"),
    Index(None, "last_at"),
)
