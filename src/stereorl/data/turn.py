"""A turn: one assistant reply with its prompt, exactly as it was sampled (invariant 1: tokens are truth)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from stereorl.data.message import Message
from stereorl.errors import MisalignedError

IntArray = npt.NDArray[np.int32]
FloatArray = npt.NDArray[np.float32]
TurnKind = Literal["main", "side"]
# stop: the model ended by itself; length: cut at max_tokens; stop_string: cut at a stop string;
# cancelled: the client hung up; error: the engine failed half-way. The last two never train.
FinishReason = Literal["stop", "length", "stop_string", "cancelled", "error"]


@dataclass(frozen=True, slots=True)
class Sampling:
    """How a reply was drawn. Log-probs are stored untruncated at `temperature` (at 1.0 when it is 0, greedy)."""

    temperature: float = 0.6
    top_p: float = 1.0
    top_k: int = 0
    max_tokens: int = 256
    seed: int | None = None
    stop: tuple[str, ...] = ()

    @property
    def truncated(self) -> bool:
        """True when the drawn distribution is not the stored one: greedy, top-p or top-k."""
        return self.temperature == 0 or self.top_p < 1 or self.top_k > 0

    @property
    def score_temperature(self) -> float:
        """The temperature at which log-probs are stored and trained."""
        return self.temperature if self.temperature > 0 else 1.0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Turn:
    """One reply. Arrays: `prompt_ids` [P], and per response token `response_ids`, `log_probs`, `versions` [R].

    `log_probs[t]` is log pi(response_ids[t] | prompt, response[:t]) of the behaviour policy, nats; `versions[t]` the
    policy version that sampled it. `response_ids` includes the end token when the model sampled it. Raises
    MisalignedError when lengths differ or a log-prob is not a finite number <= 0.
    """

    turn_id: str
    session_id: str
    index: int
    kind: TurnKind
    messages: tuple[Message, ...]
    reply: Message
    prompt_ids: IntArray
    response_ids: IntArray
    log_probs: FloatArray
    versions: IntArray
    sampling: Sampling
    finish_reason: FinishReason
    model: str
    created_at: float
    parent_turn_id: str | None = None
    tools: tuple[dict[str, Any], ...] = field(default=())

    def __post_init__(self) -> None:
        n = len(self.response_ids)
        if not (len(self.log_probs) == len(self.versions) == n):
            raise MisalignedError(
                f"Turn {self.turn_id}: {n} ids, {len(self.log_probs)} log-probs, {len(self.versions)} versions."
            )
        if n and not (np.isfinite(self.log_probs).all() and (self.log_probs <= 1e-6).all()):
            raise MisalignedError(f"Turn {self.turn_id}: a log-prob is not a finite number <= 0.")
