"""A turn with at least one signal, ready to train. Absent signals are masks, never zeros (invariant 3)."""

from __future__ import annotations

from dataclasses import dataclass

from stereorl.data.turn import FloatArray, IntArray, Turn
from stereorl.errors import MisalignedError


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Sample:
    """`reward` None: no evaluative signal. `teacher_log_probs` None: no directive signal; else float32 [R].

    `teacher_top_ids`, `teacher_top_log_probs` [R, K]: the teacher's likeliest ids, where they were recorded.
    `replayed`: it was trained before and is drawn again.
    """

    turn: Turn
    reward: float | None = None
    hint: str | None = None
    teacher_log_probs: FloatArray | None = None
    teacher_top_ids: IntArray | None = None
    teacher_top_log_probs: FloatArray | None = None
    replayed: bool = False

    def __post_init__(self) -> None:
        if not self.has_reward and not self.has_teacher:
            raise MisalignedError(f"Sample {self.turn.turn_id} carries no signal.")
        if self.teacher_log_probs is not None and len(self.teacher_log_probs) != len(self.turn.response_ids):
            raise MisalignedError(
                f"Sample {self.turn.turn_id}: teacher scores and response differ in length."
            )

    @property
    def has_reward(self) -> bool:
        return self.reward is not None

    @property
    def has_teacher(self) -> bool:
        return self.teacher_log_probs is not None

    @property
    def oldest_version(self) -> int:
        """The oldest policy version among the response tokens."""
        return int(self.turn.versions.min())
