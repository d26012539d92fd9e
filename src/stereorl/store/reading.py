"""Rows -> values, and the look-ups of serving. Functions on a transaction."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa

from stereorl.data import Feedback, Hint, Message, NextState, Sample, TeacherScore, Turn, Verdict, Vote
from stereorl.errors import NotFoundError
from stereorl.store import schema
from stereorl.store.codec import load_sampling, unpack_floats, unpack_ints, unpack_top
from stereorl.store.records import NewSession, SessionEvent, SessionRow, TurnDetail, TurnRef
from stereorl.store.schema import context, part, session, session_state, step_result, turn, use, verdict


def messages_of(connection: sa.Connection, node: bytes | None) -> tuple[Message, ...]:
    """The conversation that ends in `node`: the path up the tree, turned round."""
    if node is None:
        return ()
    path = (
        sa.select(context.c.parent, context.c.part, sa.literal(0).label("depth"))
        .where(context.c.node == node)
        .cte("path", recursive=True)
    )
    path = path.union_all(
        sa.select(context.c.parent, context.c.part, path.c.depth + 1).where(context.c.node == path.c.parent)
    )
    query = sa.select(part.c.body).join(path, part.c.digest == path.c.part).order_by(path.c.depth.desc())
    return tuple(Message.from_dict(json.loads(body)) for body in connection.execute(query).scalars())


def turn_of(connection: sa.Connection, row: Any) -> Turn:
    """The turn in a row of its table."""
    *messages, reply = messages_of(connection, row.reply_node)
    tools: Sequence[Any] = ()
    if row.tools is not None:
        tools = json.loads(
            connection.execute(sa.select(part.c.body).where(part.c.digest == row.tools)).scalar_one()
        )
    return Turn(
        turn_id=row.turn_id,
        session_id=row.session_id,
        index=row.position,
        kind=row.kind,
        messages=tuple(messages),
        reply=reply,
        prompt_ids=unpack_ints(row.prompt_ids),
        response_ids=unpack_ints(row.response_ids),
        log_probs=unpack_floats(row.log_probs),
        versions=unpack_ints(row.versions),
        sampling=load_sampling(row.sampling),
        finish_reason=row.finish_reason,
        model=row.model,
        created_at=row.created_at,
        parent_turn_id=row.parent_turn_id,
        tools=tuple(tools),
    )


def get_turn(connection: sa.Connection, turn_id: str) -> Turn:
    row = connection.execute(sa.select(turn).where(turn.c.turn_id == turn_id)).one_or_none()
    if row is None:
        raise NotFoundError(f"There is no turn '{turn_id}'. `stereorl sessions` lists what there is.")
    return turn_of(connection, row)


def find_turn(connection: sa.Connection, prefix: str) -> str:
    """The one turn whose id begins with `prefix`."""
    begins = sa.func.substr(turn.c.turn_id, 1, len(prefix)) == prefix
    query = sa.select(turn.c.turn_id).where(begins).order_by(turn.c.turn_id).limit(3)
    found: list[str] = list(connection.execute(query).scalars())
    if prefix in found:
        return prefix
    if not found:
        raise NotFoundError(f"No turn's id begins with '{prefix}'. `stereorl sessions` lists what there is.")
    if len(found) > 1:
        raise NotFoundError(
            f"Several turns' ids begin with '{prefix}' ({', '.join(found)}, ...). Give more of it."
        )
    return found[0]


def next_states_of(connection: sa.Connection, turn_id: str) -> tuple[NextState, ...]:
    table = schema.next_state
    rows = connection.execute(sa.select(table).where(table.c.turn_id == turn_id).order_by(table.c.id)).all()
    return tuple(NextState(turn_id, r.kind, messages_of(connection, r.node), r.created_at) for r in rows)


def feedback_of(connection: sa.Connection, turn_id: str) -> tuple[Feedback, ...]:
    table = schema.feedback
    rows = connection.execute(sa.select(table).where(table.c.turn_id == turn_id).order_by(table.c.id))
    return tuple(Feedback(turn_id, r.score, r.correction, r.created_at) for r in rows)


def hints_of(connection: sa.Connection, turn_id: str) -> tuple[Hint, ...]:
    table = schema.hint
    rows = connection.execute(sa.select(table).where(table.c.turn_id == turn_id).order_by(table.c.position))
    return tuple(Hint(r.text, r.source, r.accepted, r.reason) for r in rows)


def verdict_of(connection: sa.Connection, turn_id: str) -> Verdict | None:
    row = connection.execute(sa.select(verdict).where(verdict.c.turn_id == turn_id)).one_or_none()
    if row is None:
        return None
    table = schema.vote
    rows = connection.execute(sa.select(table).where(table.c.turn_id == turn_id).order_by(table.c.position))
    return Verdict(row.reward, row.reason, tuple(Vote(r.judge, r.value, r.reason) for r in rows))


def teacher_score_of(connection: sa.Connection, turn_id: str) -> TeacherScore | None:
    table = schema.teacher_score
    row = connection.execute(sa.select(table).where(table.c.turn_id == turn_id)).one_or_none()
    if row is None:
        return None
    log_probs = unpack_floats(row.log_probs)
    ids, logps = None, None
    if row.top_ids is not None and row.top_log_probs is not None:
        ids, logps = unpack_top(row.top_ids, row.top_log_probs, len(log_probs))
    return TeacherScore(turn_id, row.hint, row.teacher, row.temperature, log_probs, ids, logps)


def unscored_of(connection: sa.Connection, turn_id: str) -> str | None:
    query = sa.select(schema.unscored.c.reason).where(schema.unscored.c.turn_id == turn_id)
    reason: str | None = connection.execute(query).scalar()
    return reason


def replays_of(connection: sa.Connection, turn_id: str) -> tuple[int, ...]:
    """The published versions that a turn was trained into again, in order."""
    query = (
        sa.select(step_result.c.version)
        .join(schema.replay, schema.replay.c.step_id == step_result.c.step_id)
        .where(schema.replay.c.turn_id == turn_id, step_result.c.outcome == "published")
        .order_by(step_result.c.step_id)
    )
    return tuple(connection.execute(query).scalars())


def sample_of(connection: sa.Connection, row: Any, *, replayed: bool = False) -> Sample:
    """The turn in a row of its table with its signals. MisalignedError or ValueError when it cannot be read."""
    decision = verdict_of(connection, row.turn_id)
    score = teacher_score_of(connection, row.turn_id)
    return Sample(
        turn=turn_of(connection, row),
        reward=None if decision is None or decision.reward is None else float(decision.reward),
        hint=score.hint if score else None,
        teacher_log_probs=score.log_probs if score else None,
        teacher_top_ids=score.top_ids if score else None,
        teacher_top_log_probs=score.top_log_probs if score else None,
        replayed=replayed,
    )


def detail(connection: sa.Connection, turn_id: str) -> TurnDetail:
    """A turn and everything known about it."""
    found = get_turn(connection, turn_id)
    decided = verdict_of(connection, turn_id)
    score = teacher_score_of(connection, turn_id)
    holder = sa.select(use.c.step_id, step_result.c.outcome, step_result.c.version)
    held = connection.execute(
        holder.select_from(use.outerjoin(step_result, step_result.c.step_id == use.c.step_id)).where(
            use.c.turn_id == turn_id
        )
    ).one_or_none()
    dropped = connection.execute(sa.select(schema.drop).where(schema.drop.c.turn_id == turn_id)).one_or_none()
    waiting = sa.select(schema.sample_state.c.stage).where(schema.sample_state.c.turn_id == turn_id)
    return TurnDetail(
        turn=found,
        next_states=next_states_of(connection, turn_id),
        votes=decided.votes if decided else (),
        verdict=decided,
        hints=hints_of(connection, turn_id),
        teacher_scores=(score,) if score else (),
        feedback=feedback_of(connection, turn_id),
        use=held.step_id if held else None,
        drop=dropped.reason if dropped else None,
        version=held.version if held and held.outcome == "published" else None,
        stage=connection.execute(waiting).scalar(),
        drop_stage=dropped.stage if dropped else None,
        unscored=unscored_of(connection, turn_id),
        replays=replays_of(connection, turn_id),
    )


_REF = (turn.c.turn_id, turn.c.session_id, turn.c.position, turn.c.kind)


def _ref(connection: sa.Connection, query: sa.Select[Any]) -> TurnRef | None:
    row = connection.execute(query.limit(1)).one_or_none()
    return TurnRef(*row) if row else None


def continuation(connection: sa.Connection, key: str, within: str | None) -> TurnRef | None:
    return _latest(connection, turn.c.reply_key == key, within)


def same_prompt(connection: sa.Connection, key: str, within: str | None) -> TurnRef | None:
    return _latest(connection, turn.c.prompt_key == key, within)


def _latest(
    connection: sa.Connection, condition: sa.ColumnElement[bool], within: str | None
) -> TurnRef | None:
    """The latest turn; `within`: of that session and its forks."""
    query = sa.select(*_REF).where(condition).order_by(turn.c.seq.desc())
    if within is not None:
        forks = sa.select(schema.session.c.session_id).where(schema.session.c.forked_from == within)
        query = query.where(sa.or_(turn.c.session_id == within, turn.c.session_id.in_(forks)))
    return _ref(connection, query)


def last_main_turn(connection: sa.Connection, session_id: str) -> TurnRef | None:
    query = sa.select(*_REF).where(turn.c.session_id == session_id, turn.c.kind == "main")
    return _ref(connection, query.order_by(turn.c.position.desc(), turn.c.seq.desc()))


def sessions(connection: sa.Connection, limit: int, offset: int) -> list[SessionRow]:
    """The latest first. Counts are worked out for the sessions on this page only."""
    page = (
        sa.select(session, session_state.c.open, session_state.c.reason, session_state.c.last_at)
        .join(session_state, session_state.c.session_id == session.c.session_id)
        .order_by(session_state.c.last_at.desc(), session.c.session_id)
        .limit(limit)
        .offset(offset)
    )
    rows = connection.execute(page).all()
    counts = (
        sa.select(turn.c.session_id, sa.func.count(), sa.func.avg(verdict.c.reward))
        .select_from(turn.outerjoin(verdict, verdict.c.turn_id == turn.c.turn_id))
        .where(turn.c.session_id.in_([row.session_id for row in rows]))
        .group_by(turn.c.session_id)
    )
    found = {key: (n, mean) for key, n, mean in connection.execute(counts)}
    return [_session_row(row, *found.get(row.session_id, (0, None))) for row in rows]


def _session_row(row: Any, turns: int, mean: Any) -> SessionRow:
    return SessionRow(
        id=row.session_id,
        created_at=row.created_at,
        last_at=row.last_at,
        turns=turns,
        reward=None if mean is None else float(mean),
        state="open" if row.open else "closed",
        reason=row.reason,
        forked_from=row.forked_from,
    )


def session_turns(connection: sa.Connection, session_id: str) -> list[str]:
    query = (
        sa.select(turn.c.turn_id).where(turn.c.session_id == session_id).order_by(turn.c.position, turn.c.seq)
    )
    found = list(connection.execute(query).scalars())
    if (
        not found
        and connection.execute(sa.select(session).where(session.c.session_id == session_id)).first() is None
    ):
        raise NotFoundError(f"There is no session '{session_id}'. `stereorl sessions` lists them.")
    return found


def idle_sessions(connection: sa.Connection, before: float) -> list[str]:
    query = (
        sa.select(session_state.c.session_id)
        .where(session_state.c.open.is_(True), session_state.c.last_at < before)
        .order_by(session_state.c.last_at)
    )
    return list(connection.execute(query).scalars())


def session_records(
    connection: sa.Connection, session_id: str | None
) -> list[tuple[NewSession, tuple[SessionEvent, ...]]]:
    """One session or all, oldest first, as the records that made them."""
    which = sa.true() if session_id is None else session.c.session_id == session_id
    rows = connection.execute(
        sa.select(session).where(which).order_by(session.c.created_at, session.c.session_id)
    ).all()
    if session_id is not None and not rows:
        raise NotFoundError(f"There is no session '{session_id}'. `stereorl sessions` lists them.")
    event = schema.session_event
    only = sa.true() if session_id is None else event.c.session_id == session_id
    events: dict[str, list[SessionEvent]] = {}
    for row in connection.execute(sa.select(event).where(only).order_by(event.c.id)):
        events.setdefault(row.session_id, []).append(
            SessionEvent(row.session_id, row.kind, row.reason, row.at)
        )
    return [
        (NewSession(r.session_id, r.created_at, r.origin, r.forked_from), tuple(events.get(r.session_id, ())))
        for r in rows
    ]
