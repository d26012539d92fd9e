"""What a benchmark returns, and how one is repeated: medians of interleaved rounds, ours and the other side by side."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Row:
    """One comparison. `ratio` is ours / other in `unit`; `better` says which way is good."""

    name: str
    ours: float
    other: float
    unit: str
    better: str
    note: str = ""

    @property
    def ratio(self) -> float:
        return self.ours / self.other if self.other else float("nan")

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "ratio": round(self.ratio, 4)}


def interleaved(ours: Callable[[], float], other: Callable[[], float], *, rounds: int) -> tuple[float, float]:
    """Median of each over `rounds`, taken in turns so that a noisy neighbour disturbs both alike."""
    a, b = [], []
    for number in range(rounds):
        first, second = ((ours, a), (other, b)) if number % 2 == 0 else ((other, b), (ours, a))
        for measure, into in (first, second):
            into.append(measure())
    return statistics.median(a), statistics.median(b)
