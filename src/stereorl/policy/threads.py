"""Thread settings that must be in place before torch is first imported; hence no torch here.

Two processes on the same cores whose OpenMP threads spin while they wait starve each other (0.5 tokens a
second instead of 15 on two cores); a passive wait costs a little alone and saves everything together.
"""

from __future__ import annotations

import os


def prepare_environment(threads: int | None = None) -> None:
    """Make OpenMP wait passively and use `threads` threads (None: its own choice). Values already set win.

    Call it first in every process entry point; once torch is loaded it has no effect on that process.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    if threads is not None:
        os.environ.setdefault("OMP_NUM_THREADS", str(threads))
