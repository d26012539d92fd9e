"""Untrusted text inside a prompt: bounded, cleaned, and in a fence that it cannot close (invariant 9).

Two guards, each enough by itself: marks carry a nonce that the text cannot know, and every run of angle brackets that
a mark is made of is broken inside the text. What would read as an answer (a boxed verdict, a hint's markers) is broken
too, so an answer that copies its prompt cannot be taken for a verdict that the text wrote.
"""

from __future__ import annotations

import re
import secrets

from stereorl.signals.text import unseen_removed

OPEN, CLOSE = "<<<", ">>>"
_RUNS = re.compile(r"<{2,}|>{2,}")
_BOX = re.compile(r"(?<![\\\s])(\s*+)\\[\\\s]*+(?=boxed)", re.I)  # a run is looked at once: linear
_MARKER = re.compile(r"\[(?=\s*HINT_(?:START|END))", re.I)


def nonce() -> str:
    """Eight random hexadecimal digits; one call's fences share them."""
    return secrets.token_hex(4)


def bounded_text(text: str, limit: int) -> str:
    """At most about `limit` characters: the head, a visible mark of what is left out, the tail. Unseen ones go."""
    if len(text) <= limit:
        return unseen_removed(text)
    head, tail = limit - limit // 3, limit // 3
    left_out = len(text) - head - tail
    end = text[len(text) - tail :] if tail else ""
    return unseen_removed(text[:head]) + f"\n[... {left_out} characters left out ...]\n" + unseen_removed(end)


def neutral(text: str) -> str:
    """`text` that holds no fence mark, no boxed verdict and no hint marker; a human reads the same words."""
    text = _RUNS.sub(lambda m: " ".join(m.group()), text)
    return _MARKER.sub("(", _BOX.sub(r"\1", text))


def fence(name: str, text: str, *, limit: int, nonce: str = "") -> str:
    """`text` between the marks of `name`, which is ours and trusted. No text can hold either mark."""
    tag = f"{name} {nonce}".strip()
    return f"{OPEN}{tag}\n{neutral(bounded_text(text, limit)).strip()}\n{tag}{CLOSE}"
