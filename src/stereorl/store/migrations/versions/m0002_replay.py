"""The teacher's likeliest ids beside its scores; hints that cannot be scored; turns that are trained again."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"

SERIAL = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.add_column("teacher_score", sa.Column("top_ids", sa.LargeBinary()))
    op.add_column("teacher_score", sa.Column("top_log_probs", sa.LargeBinary()))
    op.create_table(
        "unscored",
        sa.Column("turn_id", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(["turn_id"], ["turn.turn_id"], name=op.f("fk_unscored_turn_id")),
        sa.PrimaryKeyConstraint("turn_id", name=op.f("pk_unscored")),
    )
    op.create_table(
        "replay",
        sa.Column("turn_id", sa.Text(), nullable=False),
        sa.Column("step_id", SERIAL, autoincrement=False, nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.ForeignKeyConstraint(["step_id"], ["train_step.step_id"], name=op.f("fk_replay_step_id")),
        sa.ForeignKeyConstraint(["turn_id"], ["turn.turn_id"], name=op.f("fk_replay_turn_id")),
        sa.PrimaryKeyConstraint("turn_id", "step_id", name=op.f("pk_replay")),
    )
    op.create_index(op.f("ix_replay_step_id"), "replay", ["step_id"])
