"""One learner per home: a lock that the system releases when its holder ends, however it ends."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from stereorl.errors import ProcessError


@contextlib.contextmanager
def learner_lock(home: Path) -> Iterator[None]:
    """Hold home/run/learn.lock. ProcessError when another learner does."""
    path = home / "run" / "learn.lock"
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            holder = file.read().strip() or "unknown"
            raise ProcessError(
                f"A learner (process {holder}) already works on {home}. Stop it, or give another --home."
            ) from None
        file.seek(0)
        file.truncate()
        file.write(str(os.getpid()))
        file.flush()
        try:
            yield
        finally:
            file.truncate(0)  # who reads the holder's process id must not find one that is gone
