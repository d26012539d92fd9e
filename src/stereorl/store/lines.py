"""The lines of a JSONL export: one per session, and one per turn with everything known about it.

Exact: float32 values are written as the doubles they equal. Reading refuses what does not fit, naming the
field; the strictness is here, so that nothing half-valid reaches the store.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Annotated, Any, Literal, Self

import numpy as np
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainValidator,
    ValidationError,
    model_validator,
)

from stereorl.data import (
    Feedback,
    Hint,
    Message,
    NextState,
    Sampling,
    TeacherScore,
    ToolCall,
    Turn,
    Verdict,
    Vote,
)
from stereorl.data.signal import Reward
from stereorl.store.records import NewSession, Origin, SessionEvent, TurnDetail


class Line(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError("must be text")
    return value


def _id(value: object) -> str:
    if not _text(value):
        raise ValueError("must not be empty")
    return _text(value)


def _no_truth_value(value: object) -> object:
    if isinstance(value, bool):
        raise ValueError("must be a number")
    return value


Int32 = Annotated[int, Field(ge=-(2**31), lt=2**31)]
Float32 = Annotated[float, Field(ge=-3.4e38, le=3.4e38)]
Text = Annotated[
    str, PlainValidator(_text)
]  # pydantic's own str refuses lone surrogates, which JSON may hold
Id = Annotated[str, PlainValidator(_id)]
RewardValue = Annotated[Reward, BeforeValidator(_no_truth_value)]


class FunctionLine(Line):
    name: Text
    arguments: Text


class ToolCallLine(Line):
    id: Text
    type: Literal["function"] = "function"
    function: FunctionLine


class MessageLine(Line):
    role: Literal["system", "user", "assistant", "tool"]
    content: Text = ""
    name: Text | None = None
    tool_calls: list[ToolCallLine] = []
    tool_call_id: Text | None = None

    def value(self) -> Message:
        calls = tuple(ToolCall(c.id, c.function.name, c.function.arguments) for c in self.tool_calls)
        return Message(self.role, self.content, self.name, calls, self.tool_call_id)


class SamplingLine(Line):
    temperature: float = Field(ge=0)
    top_p: float
    top_k: int
    max_tokens: int
    seed: int | None
    stop: list[Text]

    def value(self) -> Sampling:
        return Sampling(**{**self.model_dump(), "stop": tuple(self.stop)})


class NextStateLine(Line):
    kind: Literal["reply", "regenerate"]
    messages: list[MessageLine]
    created_at: float


class VoteLine(Line):
    judge: Text
    value: RewardValue | None
    reason: Text


class VerdictLine(Line):
    reward: RewardValue | None
    reason: Text
    votes: list[VoteLine]


class HintLine(Line):
    text: Text
    source: Literal["user", "tool", "feedback", "model"]
    accepted: bool
    reason: Text


class TeacherLine(Line):
    hint: Text
    teacher: Text
    temperature: float
    log_probs: list[Float32]
    top_ids: list[list[Int32]] | None = None
    top_log_probs: list[list[Float32]] | None = None

    @model_validator(mode="after")
    def _top_fits(self) -> Self:
        ids, log_probs = self.top_ids or [], self.top_log_probs or []
        widths = {len(row) for row in ids} | {len(row) for row in log_probs}
        if len(ids) != len(log_probs) or len(ids) not in (0, len(self.log_probs)) or len(widths) > 1:
            raise ValueError("top_ids and top_log_probs need as many rows as log_probs, of one length")
        if 0 in widths:
            raise ValueError("top_ids and top_log_probs hold empty rows")
        return self


class FeedbackLine(Line):
    score: RewardValue | None
    correction: Text | None
    created_at: float


class DropLine(Line):
    stage: Text
    reason: Text


class EventLine(Line):
    kind: Literal["closed", "reopened"]
    reason: Text
    at: float


class SessionLine(Line):
    type: Literal["session"]
    session_id: Id
    created_at: float
    origin: Origin
    forked_from: Text | None = None
    events: list[EventLine] = []

    def value(self) -> NewSession:
        return NewSession(self.session_id, self.created_at, self.origin, self.forked_from)

    def event_values(self) -> list[SessionEvent]:
        return [SessionEvent(self.session_id, e.kind, e.reason, e.at) for e in self.events]


class TurnLine(Line):
    type: Literal["turn"]
    turn_id: Id
    session_id: Id
    index: Annotated[Int32, Field(ge=0)]
    kind: Literal["main", "side"]
    messages: list[MessageLine]
    reply: MessageLine
    tools: list[dict[Text, Any]] = []
    prompt_ids: list[Int32]
    response_ids: list[Int32]
    log_probs: list[Float32]
    versions: list[Int32]
    sampling: SamplingLine
    finish_reason: Literal["stop", "length", "stop_string", "cancelled", "error"]
    model: Text
    created_at: float
    parent_turn_id: Text | None = None
    next_states: list[NextStateLine] = []
    feedback: list[FeedbackLine] = []
    verdict: VerdictLine | None = None
    hints: list[HintLine] = []
    teacher_score: TeacherLine | None = None
    unscored: Text | None = None
    drop: DropLine | None = None
    trained_version: int | None = None

    @model_validator(mode="after")
    def _fits(self) -> Self:
        n = len(self.response_ids)
        if self.teacher_score is not None and len(self.teacher_score.log_probs) != n:
            raise ValueError(
                f"teacher_score has {len(self.teacher_score.log_probs)} log-probs for {n} tokens"
            )
        if self.verdict is None and (self.hints or self.teacher_score):
            raise ValueError("hints and teacher_score need a verdict")
        if self.unscored is not None and self.teacher_score is not None:
            raise ValueError("a turn with a teacher_score is not unscored")
        return self

    def value(self) -> Turn:
        return Turn(
            turn_id=self.turn_id,
            session_id=self.session_id,
            index=self.index,
            kind=self.kind,
            messages=tuple(message.value() for message in self.messages),
            reply=self.reply.value(),
            prompt_ids=np.asarray(self.prompt_ids, np.int32),
            response_ids=np.asarray(self.response_ids, np.int32),
            log_probs=np.asarray(self.log_probs, np.float32),
            versions=np.asarray(self.versions, np.int32),
            sampling=self.sampling.value(),
            finish_reason=self.finish_reason,
            model=self.model,
            created_at=self.created_at,
            parent_turn_id=self.parent_turn_id,
            tools=tuple(self.tools),
        )

    def following(self) -> list[NextState | Feedback]:
        states = [
            NextState(self.turn_id, s.kind, tuple(m.value() for m in s.messages), s.created_at)
            for s in self.next_states
        ]
        words = [Feedback(self.turn_id, f.score, f.correction, f.created_at) for f in self.feedback]
        return [*states, *words]

    def verdict_value(self) -> Verdict | None:
        if self.verdict is None:
            return None
        votes = tuple(Vote(v.judge, v.value, v.reason) for v in self.verdict.votes)
        return Verdict(self.verdict.reward, self.verdict.reason, votes)

    def hint_values(self) -> list[Hint]:
        return [Hint(h.text, h.source, h.accepted, h.reason) for h in self.hints]

    def score_value(self) -> TeacherScore | None:
        score = self.teacher_score
        if score is None:
            return None
        log_probs = np.asarray(score.log_probs, np.float32)
        ids = np.asarray(score.top_ids, np.int32) if score.top_ids else None
        top = np.asarray(score.top_log_probs, np.float32) if score.top_ids else None
        return TeacherScore(self.turn_id, score.hint, score.teacher, score.temperature, log_probs, ids, top)


def parse(text: str) -> SessionLine | TurnLine:
    """One line. ValueError names what is wrong with it, shortly."""
    try:
        fields = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"not JSON: {error}") from error
    kind = fields.get("type") if isinstance(fields, dict) else None
    if kind not in ("session", "turn"):
        raise ValueError('not a JSON object with "type": "session" or "turn"')
    try:
        return SessionLine.model_validate(fields) if kind == "session" else TurnLine.model_validate(fields)
    except ValidationError as error:
        raise ValueError("; ".join(_fault(item) for item in error.errors()[:3])) from None


def _fault(item: Any) -> str:
    return f"{'.'.join(str(name) for name in item['loc']) or 'line'}: {item['msg']}"


def session_line(session: NewSession, events: Sequence[SessionEvent]) -> dict[str, Any]:
    return {
        "type": "session",
        "session_id": session.session_id,
        "created_at": session.created_at,
        "origin": session.origin,
        "forked_from": session.forked_from,
        "events": [{"kind": e.kind, "reason": e.reason, "at": e.at} for e in events],
    }


def turn_line(detail: TurnDetail) -> dict[str, Any]:
    turn, verdict = detail.turn, detail.verdict
    return {
        "type": "turn",
        "turn_id": turn.turn_id,
        "session_id": turn.session_id,
        "index": turn.index,
        "kind": turn.kind,
        "messages": [message.as_dict() for message in turn.messages],
        "reply": turn.reply.as_dict(),
        "tools": [dict(tool) for tool in turn.tools],
        "prompt_ids": turn.prompt_ids.tolist(),
        "response_ids": turn.response_ids.tolist(),
        "log_probs": turn.log_probs.tolist(),
        "versions": turn.versions.tolist(),
        "sampling": _sampling(turn.sampling),
        "finish_reason": turn.finish_reason,
        "model": turn.model,
        "created_at": turn.created_at,
        "parent_turn_id": turn.parent_turn_id,
        "next_states": [
            {"kind": s.kind, "messages": [m.as_dict() for m in s.messages], "created_at": s.created_at}
            for s in detail.next_states
        ],
        "feedback": [
            {"score": f.score, "correction": f.correction, "created_at": f.created_at}
            for f in detail.feedback
        ],
        "verdict": None if verdict is None else _verdict(verdict),
        "hints": [
            {"text": h.text, "source": h.source, "accepted": h.accepted, "reason": h.reason}
            for h in detail.hints
        ],
        "teacher_score": _score(detail.teacher_scores[0]) if detail.teacher_scores else None,
        "unscored": detail.unscored,
        "drop": None if detail.drop is None else {"stage": detail.drop_stage, "reason": detail.drop},
        "trained_version": detail.version,
    }


def _sampling(sampling: Sampling) -> dict[str, Any]:
    return {
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
        "max_tokens": sampling.max_tokens,
        "seed": sampling.seed,
        "stop": list(sampling.stop),
    }


def _verdict(verdict: Verdict) -> dict[str, Any]:
    votes = [{"judge": v.judge, "value": v.value, "reason": v.reason} for v in verdict.votes]
    return {"reward": verdict.reward, "reason": verdict.reason, "votes": votes}


def _score(score: TeacherScore) -> dict[str, Any]:
    return {
        "hint": score.hint,
        "teacher": score.teacher,
        "temperature": score.temperature,
        "log_probs": score.log_probs.tolist(),
        "top_ids": None if score.top_ids is None else score.top_ids.tolist(),
        "top_log_probs": None if score.top_log_probs is None else score.top_log_probs.tolist(),
    }
