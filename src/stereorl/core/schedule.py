"""The weights of the two signals over time. A further schedule is a further class here behind `Schedule`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Weights:
    """`eval` multiplies the evaluative term, `dir` the directive one."""

    eval: float
    dir: float


@dataclass(frozen=True, slots=True)
class Progress:
    """All that a schedule may read. `step` counts finished updates; None means not known yet."""

    step: int
    mean_reward: float | None = None


class Schedule(Protocol):
    """Gives the weights of the next update. Its state is plain numbers, so that a checkpoint can hold it."""

    def weights(self, progress: Progress) -> Weights: ...

    def state_dict(self) -> dict[str, float]: ...

    def load_state_dict(self, state: dict[str, float]) -> None: ...


@dataclass(frozen=True, slots=True)
class Constant:
    """w(step) = (w_eval, w_dir) at every step. Source: arXiv 2603.10165 with (1, 1)."""

    w_eval: float = 1.0
    w_dir: float = 1.0

    def weights(self, progress: Progress) -> Weights:
        return Weights(self.w_eval, self.w_dir)

    def state_dict(self) -> dict[str, float]:
        return {}

    def load_state_dict(self, state: dict[str, float]) -> None:
        if state:
            raise ValueError(f"A constant schedule has no state, but was given {sorted(state)}.")
