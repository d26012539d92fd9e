"""Has the user asked the same thing again? Then the reply did not satisfy, whatever the words.

Compared are content words (English) and characters (Chinese) with the last user messages before the reply. One
differing name or number ("the capital of France", "of Peru") makes another question, so nearly all must agree.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from stereorl.data import Message
from stereorl.signals.text import bounded, fold

LOOK_BACK = 2
_WORD = re.compile(r"[a-z]+(?:'[a-z]+)?|\d+(?:\.\d+)?|[\u3400-\u9fff]")
_STOP = frozenset(
    re.findall(
        r"\w+",
        "a an the is are was were be been do does did of to in on at for with and or so please pls can could "
        "would will you i me my we us it its this that there what which who how tell give show explain describe write "
        "say just again now more about some let hi hello ok okay need want like help know s",
    )
) | set("的了是吗呢啊吧呀请问你我他它这那个一下什么怎样样么给帮能可以和与在有")


def repeats(text: str, request: Sequence[Message]) -> bool:
    """True when `text` (lower case) is nearly the same request as one of the last user messages of `request`."""
    words = _content(text)
    earlier = [m for m in request if m.role == "user"][-LOOK_BACK:]
    return any(_near(words, _content(fold(bounded(m.content)))) or _equal(text, m.content) for m in earlier)


def _equal(text: str, other: str) -> bool:
    a, b = (" ".join(t.split()) for t in (text, fold(bounded(other))))
    return len(a) > 8 and a == b


def _content(text: str) -> frozenset[str]:
    return frozenset(_stem(w) for w in _WORD.findall(text) if w not in _STOP)


def _stem(word: str) -> str:
    word = word.removesuffix("'s")
    return word[:-1] if len(word) > 3 and word.endswith("s") and not word.endswith("ss") else word


def _near(new: frozenset[str], old: frozenset[str]) -> bool:
    if not new or len(old) < 2:
        return False
    numbers = [{w for w in words if w[0].isdigit()} for words in (new, old)]
    shared = len(new & old)
    return numbers[0] == numbers[1] and shared >= 0.85 * len(old) and shared >= 0.6 * len(new | old)
