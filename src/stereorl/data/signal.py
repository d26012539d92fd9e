"""What is learned about a turn from its next state: votes, verdicts, hints, teacher scores, feedback."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from stereorl.data.message import Message
from stereorl.data.turn import FloatArray, IntArray

Reward = Literal[-1, 0, 1]


@dataclass(frozen=True, slots=True)
class NextState:
    """Every new message after a reply, in order. `kind` says how it came: an extension or a regeneration."""

    turn_id: str
    kind: Literal["reply", "regenerate"]
    messages: tuple[Message, ...]
    created_at: float


@dataclass(frozen=True, slots=True)
class Vote:
    """One judge's vote; `value` None is an abstention. `reason` names the rule or quotes the rationale."""

    judge: str
    value: Reward | None
    reason: str


@dataclass(frozen=True, slots=True)
class Verdict:
    """The decision over the votes; `reward` None: all abstained, so there is no evaluative signal."""

    reward: Reward | None
    reason: str
    votes: tuple[Vote, ...] = ()


@dataclass(frozen=True, slots=True)
class Hint:
    """How the reply should have been different. Only an accepted hint teaches; `reason` says why (not).

    `source` "model": a model worded it, from what a trusted role said; the others quote.
    """

    text: str
    source: Literal["user", "tool", "feedback", "model"]
    accepted: bool
    reason: str


@dataclass(frozen=True, slots=True, eq=False)
class TeacherScore:
    """log pi_teacher(response_ids[t] | prompt + hint, response[:t]) at the turn's temperature; float32 [R].

    `top_ids` int32 [R, K] and `top_log_probs` float32 [R, K], where recorded: the teacher's K likeliest ids,
    best first.
    """

    turn_id: str
    hint: str
    teacher: str
    temperature: float
    log_probs: FloatArray
    top_ids: IntArray | None = None
    top_log_probs: FloatArray | None = None


@dataclass(frozen=True, slots=True)
class Feedback:
    """What a user says about a turn outside the conversation: a score, a correction, or both."""

    turn_id: str
    score: Reward | None
    correction: str | None
    created_at: float
