"""The questions of the demo: `train` for sessions, `heldout` for judging, `retention` for what must stay. Disjoint."""

from __future__ import annotations

from importlib.resources import files
from typing import Literal


def questions(name: Literal["train", "heldout", "retention"]) -> tuple[str, ...]:
    """The lines of one list, in their order."""
    text = files(__name__).joinpath(f"{name}.txt").read_text(encoding="utf-8")
    return tuple(line.strip() for line in text.splitlines() if line.strip())
