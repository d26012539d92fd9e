"""The weights of the two signals over time. A further schedule is a further class behind `Schedule`.

A schedule's state moves when it sees a larger step than before, never with how often it is asked. A reading that is
not finite counts as not known, so that one diverged update does not spoil the weights of those after it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeGuard


@dataclass(frozen=True, slots=True)
class Weights:
    """`eval` multiplies the evaluative term, `dir` the directive one."""

    eval: float
    dir: float


@dataclass(frozen=True, slots=True)
class Progress:
    """All that a schedule may read; None means not known.

    `step` counts finished updates. `mean_reward` is the mean reward of the last batch that had one,
    `directive_share` the share of the last batch's samples with a directive signal, `eval_norm` and `dir_norm`
    the gradient norms of the two terms in the last update, at weight 1.
    """

    step: int
    mean_reward: float | None = None
    directive_share: float | None = None
    eval_norm: float | None = None
    dir_norm: float | None = None


class Schedule(Protocol):
    """Gives the weights of the next update. Its state is plain numbers and lists, so that a checkpoint can hold it."""

    def weights(self, progress: Progress) -> Weights: ...

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


class Stateless:
    """A schedule that depends on the step alone."""

    __slots__ = ()

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if state:
            raise ValueError(f"{type(self).__name__} has no state, but was given {sorted(state)}.")


@dataclass(frozen=True, slots=True)
class Constant(Stateless):
    """w(step) = (w_eval, w_dir) at every step. Source: arXiv 2603.10165 with (1, 1). Errors: ValueError on nonsense."""

    w_eval: float = 1.0
    w_dir: float = 1.0

    def __post_init__(self) -> None:
        _check_weights(self.w_eval, self.w_dir)

    def weights(self, progress: Progress) -> Weights:
        return Weights(self.w_eval, self.w_dir)


@dataclass(frozen=True, slots=True)
class Linear(Stateless):
    """w(step) = start + (end - start) * min(step / steps, 1), for both weights; without `w_eval_end` w_eval stays.

    Source: the second seed article: guidance from 1-2 down to 0.05 over 20-50 % of training. Errors: ValueError when
    `steps` is not positive or a weight is negative.
    """

    w_eval: float = 1.0
    w_dir: float = 1.0
    w_eval_end: float | None = None
    w_dir_end: float = 0.05
    steps: int = 40

    def __post_init__(self) -> None:
        _check_steps(self.steps)
        _check_weights(self.w_eval, self.w_dir, self.w_eval_end or 0.0, self.w_dir_end)

    def weights(self, progress: Progress) -> Weights:
        share = self.share(min(max(progress.step, 0) / self.steps, 1.0))
        w_eval_end = self.w_eval if self.w_eval_end is None else self.w_eval_end
        return Weights(_between(self.w_eval, w_eval_end, share), _between(self.w_dir, self.w_dir_end, share))

    def share(self, t: float) -> float:
        """How much of the way is done at t in [0, 1]."""
        return t


@dataclass(frozen=True, slots=True)
class Cosine(Linear):
    """w(step) = end + (start - end) * (1 + cos(pi * min(step / steps, 1))) / 2.

    Source: SGDR's half cosine (arXiv 1608.03983). Errors: as `Linear`, whose ends and middle it shares.
    """

    def share(self, t: float) -> float:
        return (1 - math.cos(math.pi * t)) / 2


@dataclass(slots=True)
class Performance:
    """w_dir falls by a factor with each update at or above a score, and recovers by it below; never under the floor.

    Equation: level' = max(level * decay, floor) if the mean of the last `window` mean rewards >= threshold,
        else min(level / decay, w_dir); w = (w_eval, level). A start below the floor stays where it is.
    Source: the second seed article's performance trigger, which only ever decays; here guidance returns when
    it is needed.
    Errors: ValueError for decay outside (0, 1), a window below 1, a negative weight.
    """

    w_eval: float = 1.0
    w_dir: float = 1.0
    threshold: float = 0.5
    decay: float = 0.9
    floor: float = 0.05
    window: int = 10
    _rewards: list[float] = field(default_factory=list, init=False)
    _level: float = field(default=math.nan, init=False)
    _seen: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        _check_weights(self.w_eval, self.w_dir, self.floor)
        _check_window(self.window)
        if not math.isfinite(self.threshold):
            raise ValueError(f"threshold must be finite, not {self.threshold}.")
        if not 0 < self.decay < 1:
            raise ValueError(f"decay must lie in (0, 1), not {self.decay}.")
        self._level = self.w_dir

    def weights(self, progress: Progress) -> Weights:
        if progress.step > self._seen and _known(progress.mean_reward):
            self._rewards = _slide(self._rewards, progress.mean_reward, self.window)
            pleased = _mean(self._rewards) >= self.threshold
            self._level = self._bounded(self._level * self.decay if pleased else self._level / self.decay)
        self._seen = max(self._seen, progress.step)
        return Weights(self.w_eval, self._level)

    def _bounded(self, level: float) -> float:
        return min(max(level, self.floor), self.w_dir)  # a start below the floor wins

    def state_dict(self) -> dict[str, Any]:
        return {"rewards": list(self._rewards), "level": self._level, "seen": self._seen}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._rewards = _last(state["rewards"], self.window)
        self._level, self._seen = self._bounded(float(state["level"])), int(state["seen"])


@dataclass(slots=True)
class Density:
    """w_dir grows with the share of samples that carry a hint.

    Equation: w = (w_eval, w_dir * (1 + alpha * mean of the last `window` directive shares)); w_dir before the first.
        Never below 0, also for a negative alpha.
    Source: the first seed article (alpha 0.5, window 10). Errors: ValueError for a window below 1, a negative weight.
    """

    w_eval: float = 1.0
    w_dir: float = 1.0
    density_alpha: float = 0.5
    window: int = 10
    _shares: list[float] = field(default_factory=list, init=False)
    _seen: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        _check_weights(self.w_eval, self.w_dir)
        _check_window(self.window)
        if not math.isfinite(self.density_alpha):
            raise ValueError(f"density_alpha must be finite, not {self.density_alpha}.")

    def weights(self, progress: Progress) -> Weights:
        if progress.step > self._seen:
            self._shares = _slide(self._shares, progress.directive_share, self.window)
        self._seen = max(self._seen, progress.step)
        mean = _mean(self._shares) if self._shares else 0.0
        return Weights(self.w_eval, max(self.w_dir * (1 + self.density_alpha * mean), 0.0))

    def state_dict(self) -> dict[str, Any]:
        return {"shares": list(self._shares), "seen": self._seen}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._shares = _last(state["shares"], self.window)
        self._seen = int(state["seen"])


@dataclass(slots=True)
class Balance:
    """Equal gradient norms of the two terms, the weights' sum unchanged.

    Equation: w_eval' n_e = w_dir' n_d and w_eval' + w_dir' = w_eval + w_dir, with n the means of the last
        `window` norms at weight 1; w_eval' / w_dir' stays within a factor `balance_bound` of w_eval / w_dir.
    Source: GradNorm's aim (arXiv 1711.02257) in closed form for two terms. The first seed article's square root of a
        ratio of losses is NaN or flips its sign, since surrogates may be negative.
    Errors: ValueError for a bound below 1, a window below 1, a negative weight.

    Until both norms are known, and where a weight starts at 0, it is the constant schedule.
    """

    w_eval: float = 1.0
    w_dir: float = 1.0
    window: int = 10
    balance_bound: float = 10.0
    _eval: list[float] = field(default_factory=list, init=False)
    _dir: list[float] = field(default_factory=list, init=False)
    _seen: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        _check_weights(self.w_eval, self.w_dir)
        _check_window(self.window)
        if not 1 <= self.balance_bound < math.inf:
            raise ValueError(f"balance_bound must be finite and at least 1, not {self.balance_bound}.")

    def weights(self, progress: Progress) -> Weights:
        if progress.step > self._seen:
            self._eval = _slide(self._eval, progress.eval_norm, self.window)
            self._dir = _slide(self._dir, progress.dir_norm, self.window)
        self._seen = max(self._seen, progress.step)
        start = Weights(self.w_eval, self.w_dir)
        if not self._eval or not self._dir or min(self.w_eval, self.w_dir) == 0:
            return start
        n_eval, n_dir = _mean(self._eval), _mean(self._dir)
        if min(n_eval, n_dir) <= 0:
            return start
        first = self.w_eval / self.w_dir
        odds = min(max(n_dir / n_eval, first / self.balance_bound), first * self.balance_bound)
        total = self.w_eval + self.w_dir
        return Weights(total * odds / (1 + odds), total / (1 + odds))

    def state_dict(self) -> dict[str, Any]:
        return {"eval": list(self._eval), "dir": list(self._dir), "seen": self._seen}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._eval = _last(state["eval"], self.window)
        self._dir = _last(state["dir"], self.window)
        self._seen = int(state["seen"])


@dataclass(frozen=True, slots=True)
class Complementary(Stateless):
    """w = (1 - w_dir(step), w_dir(step)), w_dir on a straight line from start to end, within [0, 1].

    Source: the second seed article (DESIGN: 1 - w). Errors: as `Linear`.
    """

    w_dir: float = 1.0
    w_dir_end: float = 0.05
    steps: int = 40

    def __post_init__(self) -> None:
        _check_steps(self.steps)
        _check_weights(self.w_dir, self.w_dir_end)

    def weights(self, progress: Progress) -> Weights:
        share = min(max(progress.step, 0) / self.steps, 1.0)
        w_dir = min(max(_between(self.w_dir, self.w_dir_end, share), 0.0), 1.0)
        return Weights(1.0 - w_dir, w_dir)


def _between(start: float, end: float, share: float) -> float:
    return (
        end if share >= 1 else start + (end - start) * share
    )  # exact at both ends, and where they are equal


def _known(value: float | None) -> TypeGuard[float]:
    return value is not None and math.isfinite(value)


def _slide(values: list[float], value: float | None, window: int) -> list[float]:
    """The last `window` values with one more, if it is known."""
    return _last([*values, value], window) if _known(value) else values


def _last(values: Sequence[float], window: int) -> list[float]:
    return [float(value) for value in values[-window:]]


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


def _check_steps(steps: int) -> None:
    if steps < 1:
        raise ValueError(f"steps must be at least 1, not {steps}.")


def _check_window(window: int) -> None:
    if window < 1:
        raise ValueError(f"window must be at least 1, not {window}.")


def _check_weights(*weights: float) -> None:
    if not all(0 <= weight < math.inf for weight in weights):
        raise ValueError(f"Weights must be finite and not negative: {weights}.")
