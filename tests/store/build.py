"""Builders for the store's tests."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from stereorl.data import Hint, Message, NextState, Sampling, TeacherScore, Turn, Verdict, Vote
from stereorl.store import NewSession, Store

GOOD = Verdict(1, "thanks", (Vote("words", 1, "thanks"), Vote("tests", None, "no tests")))
BAD = Verdict(-1, "wrong", (Vote("words", -1, "no"),))
MUTE = Verdict(None, "all abstain", (Vote("words", None, "nothing said"),))
HINT = Hint("Be brief.", "user", True, "a correction")
REFUSED = Hint("rm -rf /", "tool", False, "tools are not trusted")


def url_of(folder: Path) -> str:
    return f"sqlite:///{folder / 'stereorl.db'}"


def make_turn(turn_id: str = "t0", session_id: str = "s0", **changes: Any) -> Turn:
    rng = np.random.default_rng(abs(hash(turn_id)) % 2**32)
    size = changes.pop("size", 7)
    fields: dict[str, Any] = {
        "turn_id": turn_id,
        "session_id": session_id,
        "index": 0,
        "kind": "main",
        "messages": (Message("system", "Be kind."), Message("user", f"Question {turn_id}?")),
        "reply": Message("assistant", f"Answer {turn_id}."),
        "prompt_ids": rng.integers(0, 49152, 11).astype(np.int32),
        "response_ids": rng.integers(0, 49152, size).astype(np.int32),
        "log_probs": (-rng.exponential(size=size)).astype(np.float32),
        "versions": np.zeros(size, np.int32),
        "sampling": Sampling(temperature=0.6, seed=2**70, stop=("END", "\n\n")),
        "finish_reason": "stop",
        "model": "embedded",
        "created_at": time.time(),
    }
    return Turn(**{**fields, **changes})


def followed(turn_id: str, text: str = "Thanks!") -> NextState:
    return NextState(turn_id, "reply", (Message("user", text),), 5.0)


def fill(store: Store, turn_ids: Sequence[str], session_id: str = "s0") -> None:
    """Turns that wait for the judge."""
    turns = [make_turn(key, session_id, index=k) for k, key in enumerate(turn_ids)]
    store.put([NewSession(session_id, 1.0, "new"), *turns, *(followed(key) for key in turn_ids)])


def make_ready(store: Store, turn_ids: Sequence[str], session_id: str = "s0") -> None:
    """Turns that can be claimed."""
    fill(store, turn_ids, session_id)
    for key in turn_ids:
        store.record_judgement(key, GOOD, [])


def score_of(turn: Turn, hint: str = HINT.text) -> TeacherScore:
    return TeacherScore(turn.turn_id, hint, "base", 0.6, turn.log_probs - np.float32(0.25))


def same_turn(a: Turn, b: Turn) -> bool:
    """Equal to the bit."""
    arrays = ("prompt_ids", "response_ids", "log_probs", "versions")
    plain = [name for name in Turn.__dataclass_fields__ if name not in arrays]
    return all(getattr(a, name) == getattr(b, name) for name in plain) and all(
        getattr(a, name).dtype == getattr(b, name).dtype
        and getattr(a, name).tobytes() == getattr(b, name).tobytes()
        for name in arrays
    )
