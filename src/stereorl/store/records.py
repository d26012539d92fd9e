"""Values that go into the store beside those of `data`, and what its questions answer with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from stereorl.data import Feedback, Hint, NextState, Sample, TeacherScore, Turn, Verdict, Vote

Origin = Literal["header", "prefix", "new"]
Outcome = Literal["published", "rejected", "abandoned"]
Stage = Literal["captured", "judge", "score", "ready", "signalless", "used"]


@dataclass(frozen=True, slots=True)
class NewSession:
    """A conversation begins. `origin` says how it was recognised; `forked_from` names the session it left."""

    session_id: str
    created_at: float
    origin: Origin
    forked_from: str | None = None


@dataclass(frozen=True, slots=True)
class SessionEvent:
    """A session was closed (`reason`: done, idle, ...) or opened again."""

    session_id: str
    kind: Literal["closed", "reopened"]
    reason: str
    at: float


@dataclass(frozen=True, slots=True)
class Drop:
    """A turn that will never train, at which stage and why. Has no effect on a turn that is final already."""

    turn_id: str
    stage: str
    reason: str


Record = NewSession | Turn | NextState | Feedback | SessionEvent | Drop


@dataclass(frozen=True, slots=True)
class TurnRef:
    turn_id: str
    session_id: str
    index: int
    kind: Literal["main", "side"]


@dataclass(frozen=True, slots=True)
class SessionRow:
    """`reward` is the mean over the session's judged turns; `reason` says why it is closed."""

    id: str
    created_at: float
    last_at: float
    turns: int
    reward: float | None
    state: Literal["open", "closed"]
    reason: str | None
    forked_from: str | None


@dataclass(frozen=True, slots=True)
class JudgeItem:
    """A turn with what followed it: the reply to it, else its regeneration, else feedback alone."""

    turn: Turn
    next_state: NextState | None
    feedback: tuple[Feedback, ...]


@dataclass(frozen=True, slots=True)
class Ready:
    """How many samples can be claimed, and since when the oldest of them has waited."""

    n: int
    oldest_at: float | None


@dataclass(frozen=True, slots=True)
class Claim:
    """`samples` are held by the step, exactly once; `replayed` were trained before and are drawn again."""

    step_id: int
    samples: tuple[Sample, ...]
    replayed: tuple[Sample, ...] = ()


@dataclass(frozen=True, slots=True)
class OpenStep:
    """A step that was claimed and has no outcome: its learner died, or is still at it."""

    step_id: int
    parent_version: int
    turn_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class StepRow:
    """`outcome` None: open. `metrics` come back as they were given; they may hold NaN, which is not JSON."""

    step_id: int
    at: float
    outcome: Outcome | None
    version: int | None
    n: int
    metrics: Mapping[str, Any]
    parent_version: int = 0


@dataclass(frozen=True, slots=True)
class Funnel:
    """Where turns are. Always: captured == trained + waiting + sum(dropped.values()).

    captured: main turns; side: side turns, beside them. judged, hinted (an accepted hint), scored: how many
    ever got there. unscored: hints that no teacher can score, by reason. waiting: not yet trained or dropped,
    split by `stages`. steps: published updates. replayed: how often they drew a trained turn again.
    oldest_waiting_s: age of the oldest turn that waits for the learner rather than for its user.
    """

    captured: int
    side: int
    judged: int
    hinted: int
    scored: int
    trained: int
    waiting: int
    dropped: Mapping[str, int]
    rewards: Mapping[int, int]
    forks: int
    sessions: int
    steps: int
    oldest_waiting_s: float | None
    stages: Mapping[str, int] = field(default_factory=dict)
    unscored: Mapping[str, int] = field(default_factory=dict)
    replayed: int = 0


@dataclass(frozen=True, slots=True)
class TurnDetail:
    """Everything known about a turn. `use`: the step that holds it; `version`: the one it was trained into;
    `drop`: the reason it will never train; `stage`: where it waits, None once it is final or when it is a
    side turn; `unscored`: why its hint has no teacher score; `replays`: the versions it was trained into again.
    """

    turn: Turn
    next_states: tuple[NextState, ...]
    votes: tuple[Vote, ...]
    verdict: Verdict | None
    hints: tuple[Hint, ...]
    teacher_scores: tuple[TeacherScore, ...]
    feedback: tuple[Feedback, ...]
    use: int | None
    drop: str | None
    version: int | None
    stage: Stage | None
    drop_stage: str | None = None
    unscored: str | None = None
    replays: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Forgotten:
    """What `forget` removed. `versions`: published weights that trained on it; `open_steps`: updates in
    flight that hold its turns and may still publish; `forks`: sessions that branched off it and keep their
    own copy of the shared messages; `purged`: the bytes are gone from the database file and its log.
    """

    session_id: str
    turns: int
    versions: tuple[int, ...]
    open_steps: tuple[int, ...]
    forks: tuple[str, ...]
    purged: bool


@dataclass(frozen=True, slots=True)
class ImportedTurn:
    """A turn from elsewhere with what is known of it. `session` is used when its session is unknown here."""

    session: NewSession
    turn: Turn
    following: tuple[NextState | Feedback, ...]
    verdict: Verdict | None
    hints: tuple[Hint, ...]
    score: TeacherScore | None
    drop: Drop | None
    unscored: str | None = None
