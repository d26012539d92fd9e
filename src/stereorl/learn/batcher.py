"""When to train: enough samples, or one that has waited long enough; on a laptop only while nobody is served."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from stereorl.config import LearnConfig
from stereorl.store.records import Ready


class Batcher:
    """`run` is home/run, where the server tells how busy it is."""

    def __init__(self, config: LearnConfig, run: Path, *, clock: Callable[[], float] = time.time):
        self._config = config
        self._run = run
        self._clock = clock

    @property
    def new(self) -> int:
        """How many samples of a whole batch are new: what `replay` leaves of it, one at least."""
        size = self._config.batch_size
        return max(1, size - round(self._config.replay * size))

    def replays(self, n: int) -> int:
        """How many trained turns to draw beside `n` new samples, so that their share stays the same."""
        return round(n * (self._config.batch_size - self.new) / self.new)

    def due(self, ready: Ready) -> bool:
        """A whole batch's new samples, or fewer of which the oldest has waited `max_wait_s`."""
        if ready.n >= self.new:
            return True
        return (
            ready.n > 0
            and ready.oldest_at is not None
            and self._clock() - ready.oldest_at >= self._config.max_wait_s
        )

    def idle(self) -> bool:
        """True unless `idle_only_s` is set and a request is running or came less than so long ago."""
        if self._config.idle_only_s is None:
            return True
        activity = _read(self._run / "activity.json")
        if not activity or not _alive(_read(self._run / "serve.json").get("pid")):
            return True
        if activity.get("in_flight", 0) > 0:
            return False
        return bool(self._clock() - float(activity.get("last_request_at") or 0) >= self._config.idle_only_s)


def _read(file: Path) -> dict[str, Any]:
    """{} when the file is absent or unreadable: no server has told anything."""
    try:
        data = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return data if isinstance(data, dict) else {}


def _alive(pid: object) -> bool:
    """A server that died while it served must not keep the learner waiting. Unknown counts as alive."""
    if not isinstance(pid, int):
        return True
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
