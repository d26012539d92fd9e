"""The queues of judge and teacher, and what they bring back. Functions on a transaction."""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
import sqlalchemy as sa

from stereorl.data import Hint, NextState, TeacherScore, Turn, Verdict
from stereorl.errors import MisalignedError
from stereorl.store import reading, schema, state
from stereorl.store.capture import put, require
from stereorl.store.codec import pack_floats, pack_top
from stereorl.store.engine import insert_missing
from stereorl.store.records import Drop, ImportedTurn, JudgeItem, Stage
from stereorl.store.schema import (
    drop,
    sample_state,
    session_state,
    teacher_score,
    turn,
    unscored,
    verdict,
)


def queue(stage: Stage, limit: int) -> sa.Select[Any]:
    """Rows of the turns in `stage`, in the order in which they were captured."""
    return (
        sa.select(turn)
        .join(sample_state, sample_state.c.turn_id == turn.c.turn_id)
        .where(sample_state.c.stage == stage)
        .order_by(sample_state.c.seq)
        .limit(limit)
    )


def judge_queue(
    connection: sa.Connection, limit: int, skip: Collection[str] = (), only: Collection[str] | None = None
) -> list[JudgeItem]:
    query = queue("judge", limit)
    if skip:
        query = query.where(turn.c.turn_id.not_in(list(skip)))
    if only is not None:
        query = query.where(turn.c.turn_id.in_(list(only)))
    return [_judge_item(connection, row) for row in connection.execute(query).all()]


def _judge_item(connection: sa.Connection, row: Any) -> JudgeItem:
    following = reading.next_states_of(connection, row.turn_id)
    feedback = reading.feedback_of(connection, row.turn_id)
    return JudgeItem(reading.turn_of(connection, row), _telling(following), feedback)


def _telling(following: Sequence[NextState]) -> NextState | None:
    """The reply to the turn says more than that it was asked for again."""
    return min(following, key=lambda item: item.kind != "reply", default=None)


def orphan_queue(connection: sa.Connection, limit: int) -> list[str]:
    query = (
        sa.select(turn.c.turn_id)
        .join(sample_state, sample_state.c.turn_id == turn.c.turn_id)
        .join(session_state, session_state.c.session_id == turn.c.session_id)
        .where(sample_state.c.stage == "captured", session_state.c.open.is_(False))
        .order_by(sample_state.c.seq)
        .limit(limit)
    )
    return list(connection.execute(query).scalars())


def record_judgement(
    connection: sa.Connection, turn_id: str, decision: Verdict, hints: Sequence[Hint]
) -> bool:
    """False, and nothing written, when the turn has a verdict or was dropped."""
    require(connection, turn.c.turn_id, turn_id)
    state.lock(connection, [turn_id])
    if connection.execute(sa.select(drop.c.turn_id).where(drop.c.turn_id == turn_id)).first():
        return False
    row = {"turn_id": turn_id, "reward": decision.reward, "reason": decision.reason, "at": time.time()}
    if not insert_missing(connection, verdict, [row]):
        return False
    votes = [
        {"turn_id": turn_id, "position": k, "judge": vote.judge, "value": vote.value, "reason": vote.reason}
        for k, vote in enumerate(decision.votes)
    ]
    insert_missing(connection, schema.vote, votes)
    insert_missing(connection, schema.hint, [_hint_row(turn_id, k, item) for k, item in enumerate(hints)])
    state.refresh(connection, [turn_id])
    return True


def _hint_row(turn_id: str, position: int, item: Hint) -> dict[str, object]:
    return {
        "turn_id": turn_id,
        "position": position,
        "text": item.text,
        "source": item.source,
        "accepted": item.accepted,
        "reason": item.reason,
    }


def score_queue(connection: sa.Connection, limit: int) -> list[tuple[Turn, tuple[Hint, ...]]]:
    found = []
    for row in connection.execute(queue("score", limit)).all():
        accepted = tuple(item for item in reading.hints_of(connection, row.turn_id) if item.accepted)
        found.append((reading.turn_of(connection, row), accepted))
    return found


def record_teacher_score(connection: sa.Connection, score: TeacherScore) -> bool:
    """False, and nothing written, when the turn has a score or cannot have one. MisalignedError when it does not
    fit the turn.
    """
    require(connection, turn.c.turn_id, score.turn_id)
    size = sa.func.length(turn.c.response_ids)
    expected = connection.execute(sa.select(size).where(turn.c.turn_id == score.turn_id)).scalar_one() // 4
    packed = pack_floats(score.log_probs, f"The teacher score of turn {score.turn_id}")
    if len(score.log_probs) != expected:
        raise MisalignedError(
            f"The teacher scored {len(score.log_probs)} tokens of turn {score.turn_id}, which has {expected}."
        )
    if not np.isfinite(score.log_probs).all():
        raise MisalignedError(f"The teacher's log-probs of turn {score.turn_id} are not all finite.")
    top: tuple[bytes | None, bytes | None] = (None, None)
    if score.top_ids is not None and score.top_log_probs is not None and expected:
        what = f"The teacher's likeliest ids of turn {score.turn_id}"
        top = pack_top(score.top_ids, score.top_log_probs, expected, what)
    state.lock(connection, [score.turn_id])
    if connection.execute(sa.select(unscored.c.turn_id).where(unscored.c.turn_id == score.turn_id)).first():
        return False
    row = {
        "turn_id": score.turn_id,
        "hint": score.hint,
        "teacher": score.teacher,
        "temperature": score.temperature,
        "log_probs": packed,
        "at": time.time(),
        "top_ids": top[0],
        "top_log_probs": top[1],
    }
    if not insert_missing(connection, teacher_score, [row]):
        return False
    state.refresh(connection, [score.turn_id])
    return True


def record_unscored(connection: sa.Connection, turn_id: str, reason: str) -> bool:
    """False, and nothing written, unless the turn waits for its teacher. A turn without a reward is dropped."""
    require(connection, turn.c.turn_id, turn_id)
    state.lock(connection, [turn_id])
    stage = sa.select(sample_state.c.stage).where(sample_state.c.turn_id == turn_id)
    if connection.execute(stage).scalar() != "score":
        return False
    insert_missing(connection, unscored, [{"turn_id": turn_id, "reason": reason, "at": time.time()}])
    reward = sa.select(verdict.c.reward).where(verdict.c.turn_id == turn_id)
    if connection.execute(reward).scalar() is None:
        put(connection, [Drop(turn_id, "score", reason)])
    state.refresh(connection, [turn_id])
    return True


def import_turn(connection: sa.Connection, item: ImportedTurn) -> bool:
    """A turn with all that is known of it, at once, so that no judge or learner sees half of it. False, and
    nothing written, when the turn is there already.
    """
    turn_id = item.turn.turn_id
    if connection.execute(sa.select(turn.c.seq).where(turn.c.turn_id == turn_id)).first():
        return False
    put(connection, [item.session, item.turn, *item.following])
    if item.verdict is not None:
        record_judgement(connection, turn_id, item.verdict, item.hints)
    if item.score is not None:
        record_teacher_score(connection, item.score)
    if item.unscored is not None:
        record_unscored(connection, turn_id, item.unscored)
    if item.drop is not None:
        put(connection, [item.drop])
    return True
