"""Small statistics for reports."""

from __future__ import annotations

import math


def wilson(successes: int, n: int, z: float = 1.96) -> tuple[float, float]:
    """Wilson's score interval of a proportion (Wilson 1927): centre (p + z^2/2n) / (1 + z^2/n), at 95 % by default.

    Unlike the normal interval it stays inside [0, 1] and is sensible for 0 and n successes. (0, 1) when n is 0.
    """
    if n == 0:
        return 0.0, 1.0
    p = successes / n
    scale = 1 + z * z / n
    centre = (p + z * z / (2 * n)) / scale
    half = z * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n)) / scale
    return max(0.0, centre - half), min(1.0, centre + half)


def mean(values: list[float]) -> float | None:
    """The arithmetic mean, or None of nothing: an absent figure is never a zero."""
    return sum(values) / len(values) if values else None
