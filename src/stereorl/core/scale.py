"""What each signal is divided by before its weight, by choice. The factors multiply the weights in force."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass, field
from typing import Any, Protocol

from torch import Tensor

from stereorl.core.schedule import Weights
from stereorl.core.shapes import check_BT, check_mask

_LEAST_RMS = 1e-6
_BOUND = 10.0


@dataclass(frozen=True, slots=True)
class SignalSizes:
    """Root mean squares over a batch's trained tokens of the evaluative advantage and of the gap; None when absent."""

    eval_rms: float | None
    dir_rms: float | None


class Scale(Protocol):
    """`scales` gives the factors of this update; `observe` is told its two losses at weight 1, None where absent."""

    def scales(self, sizes: SignalSizes) -> Weights: ...

    def observe(self, eval_loss: float | None, dir_loss: float | None) -> None: ...

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


class _Memoryless:
    __slots__ = ()

    def observe(self, eval_loss: float | None, dir_loss: float | None) -> None:
        """Nothing to remember."""

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if state:
            raise ValueError(f"{type(self).__name__} has no state, but was given {sorted(state)}.")


@dataclass(frozen=True, slots=True)
class NoScale(_Memoryless):
    """Factors (1, 1): the weights alone decide. Source: arXiv 2603.10165."""

    def scales(self, sizes: SignalSizes) -> Weights:
        return Weights(1.0, 1.0)


@dataclass(frozen=True, slots=True)
class SignalRMS(_Memoryless):
    """Factors 1 / rms of each signal over the batch; 1 where it is absent, (next to) zero or not finite.

    Source: DESIGN section 5. Errors: none.
    A reward of +-1 on every token and gaps of several nats on a few then weigh alike.
    """

    def scales(self, sizes: SignalSizes) -> Weights:
        return Weights(_inverse(sizes.eval_rms), _inverse(sizes.dir_rms))


@dataclass(slots=True)
class LossStd:
    """Factors 1 / std of each term's own loss over the last updates, within [0.1, 10]; 1 until two are known.

    Equation: 1 / sqrt(mean((L - mean(L))^2)) over the last `scale_window` losses of the term at weight 1.
    Source: the running normalisation (L - mean) / std of the second seed article. Subtracting the mean has no
    gradient, so the factor is all of it; and a surrogate's std may be next to nothing, hence the bound.
    Errors: ValueError for a window below 2.
    """

    scale_window: int = 20
    _eval: list[float] = field(default_factory=list, init=False)
    _dir: list[float] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        if self.scale_window < 2:
            raise ValueError(f"scale_window must be at least 2, not {self.scale_window}.")

    def scales(self, sizes: SignalSizes) -> Weights:
        return Weights(_inverse_std(self._eval), _inverse_std(self._dir))

    def observe(self, eval_loss: float | None, dir_loss: float | None) -> None:
        self._eval = self._slide(self._eval, eval_loss)
        self._dir = self._slide(self._dir, dir_loss)

    def state_dict(self) -> dict[str, Any]:
        return {"eval": list(self._eval), "dir": list(self._dir)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._eval = [float(value) for value in state["eval"][-self.scale_window :]]
        self._dir = [float(value) for value in state["dir"][-self.scale_window :]]

    def _slide(self, losses: list[float], loss: float | None) -> list[float]:
        """The last losses with one more; one that is not finite would spoil every factor in the window."""
        if loss is None or not math.isfinite(loss):
            return losses
        return [*losses, loss][-self.scale_window :]


def rms(value_BT: Tensor, mask_BT: Tensor) -> float | None:
    """sqrt(mean of value^2 over the mask); None when it is empty.

    Source: the definition. Shapes: both [B, T], mask_BT bool. Errors: ValueError on other shapes or masks.
    """
    check_BT(value_BT=value_BT, mask_BT=mask_BT)
    check_mask(mask_BT=mask_BT)
    chosen = value_BT[mask_BT].double()
    return float(chosen.square().mean().sqrt()) if chosen.numel() else None


def _inverse(size: float | None) -> float:
    return 1.0 / size if size is not None and _LEAST_RMS <= size < math.inf else 1.0


def _inverse_std(losses: list[float]) -> float:
    if len(losses) < 2:
        return 1.0
    return 1 / min(max(statistics.pstdev(losses), 1 / _BOUND), _BOUND)
