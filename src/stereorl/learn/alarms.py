"""Signs that a policy degenerates while its score rises: replies shrink or grow, entropy collapses or explodes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

WATCHED = {"reply_length": "tokens a reply", "entropy": "nats of entropy a token"}


class Alarms:
    """Compares updates with the mean of the first `window`; beyond `factor` either way it warns, once a crossing."""

    def __init__(self, *, window: int = 3, factor: float = 3.0):
        self._window = window
        self._factor = factor
        self._first: dict[str, list[float]] = {name: [] for name in WATCHED}
        self._raised: set[str] = set()

    def look(self, metrics: Mapping[str, Any]) -> list[str]:
        """Warnings about this update's statistics, each said when it begins."""
        return [
            text for name in WATCHED if name in metrics and (text := self._one(name, float(metrics[name])))
        ]

    def _one(self, name: str, value: float) -> str | None:
        first = self._first[name]
        if len(first) < self._window:
            first.append(value)
            return None
        usual = sum(first) / len(first)
        if usual / self._factor <= value <= usual * self._factor:
            self._raised.discard(name)
            return None
        if name in self._raised:
            return None
        self._raised.add(name)
        return f"{value:.3g} {WATCHED[name]}, where the first updates had {usual:.3g}: look at some replies."
