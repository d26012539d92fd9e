"""Small things about writing to a terminal."""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

_BARS = "▁▂▃▄▅▆▇█"


def print_json(value: Any) -> None:
    """JSON on stdout; NaN and infinities, which JSON lacks, become null."""
    json.dump(_finite(value), sys.stdout, ensure_ascii=False, indent=1, default=str, allow_nan=False)
    sys.stdout.write("\n")


def sparkline(values: Sequence[float], low: float = -1.0, high: float = 1.0) -> str:
    """One character per value, from the lowest bar at `low` to the highest at `high`."""
    span = high - low
    steps = [round((min(max(value, low), high) - low) / span * (len(_BARS) - 1)) for value in values]
    return "".join(_BARS[step] for step in steps)


def when(at: float) -> str:
    """A moment in local time."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at))


def duration(seconds: float) -> str:
    """Seconds in words: 42 s, 3 min, 5.2 h."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return value
