"""What a model's answer says: the last boxed verdict, the last marked hint. Pure, and strict: no guess is a vote."""

from __future__ import annotations

import re

from stereorl.data.signal import Reward
from stereorl.signals.fence import bounded_text

MAX_ANSWER = 20_000  # characters that are looked at, from the end
MAX_REASON = 300
_BOX = re.compile(r"\\boxed\s{0,3}\{([^{}\n]{0,40})\}")
_HINT = re.compile(r"\[HINT_START\](.*?)\[HINT_END\]", re.S)
_VALUES: dict[str, Reward] = {"+1": 1, "1": 1, "-1": -1, "\u22121": -1, "0": 0, "+0": 0, "-0": 0}


def boxed(answer: str) -> Reward | None:
    """The last `\\boxed{...}`, if it holds +1, 1, -1 or 0 and nothing else; None otherwise."""
    found = _BOX.findall(answer[-MAX_ANSWER:])
    return _VALUES.get(found[-1].replace(" ", "")) if found else None


def rationale(answer: str) -> str:
    """What stands before the last box, bounded and on one line."""
    answer = answer[-MAX_ANSWER:]
    boxes = list(_BOX.finditer(answer))
    text = answer[: boxes[-1].start()] if boxes else answer
    text = text.rpartition("</think>")[2] or text
    return " ".join(bounded_text(text, MAX_REASON).split()) or "no reason given"


def hint(answer: str) -> str:
    """What stands between the last pair of markers, on one line; "" without one."""
    text = answer[-MAX_ANSWER:]
    start = text.rfind("[HINT_START]")
    found = _HINT.match(text, start) if start >= 0 else None
    return " ".join(found.group(1).split()) if found else ""
