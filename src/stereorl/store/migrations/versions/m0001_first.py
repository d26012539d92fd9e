"""The first schema."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None

SERIAL = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.create_table(
        "part",
        sa.Column("digest", sa.LargeBinary(), nullable=False),
        sa.Column("body", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("digest", name=op.f("pk_part")),
    )
    op.create_table(
        "session",
        sa.Column("session_id", sa.Text(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("origin", sa.Text(), nullable=False),
        sa.Column("forked_from", sa.Text()),
        sa.PrimaryKeyConstraint("session_id", name=op.f("pk_session")),
    )
    op.create_index(op.f("ix_session_forked_from"), "session", ["forked_from"])
    op.create_table(
        "train_step",
        sa.Column("step_id", SERIAL, autoincrement=True, nullable=False),
        sa.Column("parent_version", sa.Integer(), nullable=False),
        sa.Column("n", sa.Integer(), nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("step_id", name=op.f("pk_train_step")),
        sqlite_autoincrement=True,
    )
    op.create_table(
        "context",
        sa.Column("node", sa.LargeBinary(), nullable=False),
        sa.Column("parent", sa.LargeBinary()),
        sa.Column("part", sa.LargeBinary(), nullable=False),
        sa.ForeignKeyConstraint(["parent"], ["context.node"], name=op.f("fk_context_parent")),
        sa.ForeignKeyConstraint(["part"], ["part.digest"], name=op.f("fk_context_part")),
        sa.PrimaryKeyConstraint("node", name=op.f("pk_context")),
        sqlite_with_rowid=False,
    )
    op.create_index(op.f("ix_context_parent"), "context", ["parent"])
    op.create_index(op.f("ix_context_part"), "context", ["part"])
    op.create_table(
        "session_event",
        sa.Column("id", SERIAL, autoincrement=True, nullable=False),
        sa.Column("digest", sa.LargeBinary(), nullable=False),
        sa.Column("session_id", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(
            ["session_id"], ["session.session_id"], name=op.f("fk_session_event_session_id")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_session_event")),
        sa.UniqueConstraint("digest", name=op.f("uq_session_event_digest")),
    )
    op.create_index(op.f("ix_session_event_session_id_id"), "session_event", ["session_id", "id"])
    op.create_table(
        "session_state",
        sa.Column("session_id", sa.Text(), nullable=False),
        sa.Column("open", sa.Boolean(), nullable=False),
        sa.Column("reason", sa.Text()),
        sa.Column("last_at", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(
            ["session_id"], ["session.session_id"], name=op.f("fk_session_state_session_id")
        ),
        sa.PrimaryKeyConstraint("session_id", name=op.f("pk_session_state")),
    )
    op.create_index(op.f("ix_session_state_last_at"), "session_state", ["last_at"])
    op.create_index(op.f("ix_session_state_open_last_at"), "session_state", ["open", "last_at"])
    op.create_table(
        "step_result",
        sa.Column("step_id", SERIAL, autoincrement=False, nullable=False),
        sa.Column("outcome", sa.Text(), nullable=False),
        sa.Column("version", sa.Integer()),
        sa.Column("metrics", sa.Text(), nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(["step_id"], ["train_step.step_id"], name=op.f("fk_step_result_step_id")),
        sa.PrimaryKeyConstraint("step_id", name=op.f("pk_step_result")),
    )
    op.create_index(op.f("ix_step_result_version"), "step_result", ["version"])
    op.create_table(
        "version",
        sa.Column("version", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("parent", sa.Integer(), nullable=False),
        sa.Column("step_id", SERIAL),
        sa.Column("status", sa.Text(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(["step_id"], ["train_step.step_id"], name=op.f("fk_version_step_id")),
        sa.PrimaryKeyConstraint("version", name=op.f("pk_version")),
    )
    op.create_table(
        "turn",
        sa.Column("seq", SERIAL, autoincrement=True, nullable=False),
        sa.Column("turn_id", sa.Text(), nullable=False),
        sa.Column("session_id", sa.Text(), nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("prompt_node", sa.LargeBinary()),
        sa.Column("reply_node", sa.LargeBinary(), nullable=False),
        sa.Column("prompt_key", sa.Text(), nullable=False),
        sa.Column("reply_key", sa.Text(), nullable=False),
        sa.Column("tools", sa.LargeBinary()),
        sa.Column("prompt_ids", sa.LargeBinary(), nullable=False),
        sa.Column("response_ids", sa.LargeBinary(), nullable=False),
        sa.Column("log_probs", sa.LargeBinary(), nullable=False),
        sa.Column("versions", sa.LargeBinary(), nullable=False),
        sa.Column("sampling", sa.Text(), nullable=False),
        sa.Column("finish_reason", sa.Text(), nullable=False),
        sa.Column("model", sa.Text(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("parent_turn_id", sa.Text()),
        sa.ForeignKeyConstraint(["prompt_node"], ["context.node"], name=op.f("fk_turn_prompt_node")),
        sa.ForeignKeyConstraint(["reply_node"], ["context.node"], name=op.f("fk_turn_reply_node")),
        sa.ForeignKeyConstraint(["session_id"], ["session.session_id"], name=op.f("fk_turn_session_id")),
        sa.ForeignKeyConstraint(["tools"], ["part.digest"], name=op.f("fk_turn_tools")),
        sa.PrimaryKeyConstraint("seq", name=op.f("pk_turn")),
        sa.UniqueConstraint("turn_id", name=op.f("uq_turn_turn_id")),
    )
    op.create_index(op.f("ix_turn_prompt_key_seq"), "turn", ["prompt_key", "seq"])
    op.create_index(op.f("ix_turn_prompt_node"), "turn", ["prompt_node"])
    op.create_index(op.f("ix_turn_reply_key_seq"), "turn", ["reply_key", "seq"])
    op.create_index(op.f("ix_turn_reply_node"), "turn", ["reply_node"])
    op.create_index(op.f("ix_turn_session_id_created_at"), "turn", ["session_id", "created_at"])
    op.create_index(op.f("ix_turn_session_id_kind_position"), "turn", ["session_id", "kind", "position"])
    op.create_index(op.f("ix_turn_tools"), "turn", ["tools"])
    op.create_table(
        "drop",
        sa.Column("turn_id", sa.Text(), nullable=False),
        sa.Column("stage", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(["turn_id"], ["turn.turn_id"], name=op.f("fk_drop_turn_id")),
        sa.PrimaryKeyConstraint("turn_id", name=op.f("pk_drop")),
    )
    op.create_table(
        "feedback",
        sa.Column("id", SERIAL, autoincrement=True, nullable=False),
        sa.Column("digest", sa.LargeBinary(), nullable=False),
        sa.Column("turn_id", sa.Text(), nullable=False),
        sa.Column("score", sa.Integer()),
        sa.Column("correction", sa.Text()),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(["turn_id"], ["turn.turn_id"], name=op.f("fk_feedback_turn_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_feedback")),
        sa.UniqueConstraint("digest", name=op.f("uq_feedback_digest")),
    )
    op.create_index(op.f("ix_feedback_turn_id"), "feedback", ["turn_id"])
    op.create_table(
        "next_state",
        sa.Column("id", SERIAL, autoincrement=True, nullable=False),
        sa.Column("digest", sa.LargeBinary(), nullable=False),
        sa.Column("turn_id", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("node", sa.LargeBinary()),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(["node"], ["context.node"], name=op.f("fk_next_state_node")),
        sa.ForeignKeyConstraint(["turn_id"], ["turn.turn_id"], name=op.f("fk_next_state_turn_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_next_state")),
        sa.UniqueConstraint("digest", name=op.f("uq_next_state_digest")),
    )
    op.create_index(op.f("ix_next_state_node"), "next_state", ["node"])
    op.create_index(op.f("ix_next_state_turn_id"), "next_state", ["turn_id"])
    op.create_table(
        "sample_state",
        sa.Column("turn_id", sa.Text(), nullable=False),
        sa.Column("seq", SERIAL, nullable=False),
        sa.Column("stage", sa.Text(), nullable=False),
        sa.Column("since", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(["turn_id"], ["turn.turn_id"], name=op.f("fk_sample_state_turn_id")),
        sa.PrimaryKeyConstraint("turn_id", name=op.f("pk_sample_state")),
    )
    op.create_index(op.f("ix_sample_state_stage_seq"), "sample_state", ["stage", "seq"])
    op.create_table(
        "teacher_score",
        sa.Column("turn_id", sa.Text(), nullable=False),
        sa.Column("hint", sa.Text(), nullable=False),
        sa.Column("teacher", sa.Text(), nullable=False),
        sa.Column("temperature", sa.Double(), nullable=False),
        sa.Column("log_probs", sa.LargeBinary(), nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(["turn_id"], ["turn.turn_id"], name=op.f("fk_teacher_score_turn_id")),
        sa.PrimaryKeyConstraint("turn_id", name=op.f("pk_teacher_score")),
    )
    op.create_table(
        "use",
        sa.Column("turn_id", sa.Text(), nullable=False),
        sa.Column("step_id", SERIAL, nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.ForeignKeyConstraint(["step_id"], ["train_step.step_id"], name=op.f("fk_use_step_id")),
        sa.ForeignKeyConstraint(["turn_id"], ["turn.turn_id"], name=op.f("fk_use_turn_id")),
        sa.PrimaryKeyConstraint("turn_id", name=op.f("pk_use")),
    )
    op.create_index(op.f("ix_use_step_id"), "use", ["step_id"])
    op.create_table(
        "verdict",
        sa.Column("turn_id", sa.Text(), nullable=False),
        sa.Column("reward", sa.Integer()),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(["turn_id"], ["turn.turn_id"], name=op.f("fk_verdict_turn_id")),
        sa.PrimaryKeyConstraint("turn_id", name=op.f("pk_verdict")),
    )
    op.create_table(
        "hint",
        sa.Column("turn_id", sa.Text(), nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
        sa.Column("source", sa.Text(), nullable=False),
        sa.Column("accepted", sa.Boolean(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["turn_id"], ["verdict.turn_id"], name=op.f("fk_hint_turn_id")),
        sa.PrimaryKeyConstraint("turn_id", "position", name=op.f("pk_hint")),
    )
    op.create_table(
        "vote",
        sa.Column("turn_id", sa.Text(), nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("judge", sa.Text(), nullable=False),
        sa.Column("value", sa.Integer()),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["turn_id"], ["verdict.turn_id"], name=op.f("fk_vote_turn_id")),
        sa.PrimaryKeyConstraint("turn_id", "position", name=op.f("pk_vote")),
    )
