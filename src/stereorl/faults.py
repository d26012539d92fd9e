"""Named points at which a crash test may kill the process; free when unused.

`STEREORL_KILL_AT=name` or `name:3` sends SIGKILL to this process on the first (third) pass through that point.
"""

from __future__ import annotations

import os
import signal
from collections import Counter

_WANTED, _, _NTH = os.environ.get("STEREORL_KILL_AT", "").partition(":")
_passed: Counter[str] = Counter()


def point(name: str) -> None:
    """Die here if asked to."""
    if name == _WANTED:
        _passed[name] += 1
        if _passed[name] == int(_NTH or 1):
            os.kill(os.getpid(), signal.SIGKILL)
