"""Turns and next states in one line."""

from __future__ import annotations

import numpy as np

from stereorl.data import Message, NextState, Sampling, Turn

NONE = np.zeros(0, np.int32)


def turn(
    request: str | tuple[Message, ...] = "Explain how photosynthesis works.",
    reply: str | Message = "Plants make sugar from light.",
    turn_id: str = "t",
) -> Turn:
    return Turn(
        turn_id=turn_id, session_id="s", index=0, kind="main",
        messages=(Message("user", request),) if isinstance(request, str) else request,
        reply=Message("assistant", reply) if isinstance(reply, str) else reply,
        prompt_ids=NONE, response_ids=NONE, log_probs=np.zeros(0, np.float32), versions=NONE,
        sampling=Sampling(), finish_reason="stop", model="m", created_at=0.0,
    )  # fmt: skip


def said(*texts: str, role: str = "user", kind: str = "reply") -> NextState:
    return NextState("t", kind, tuple(Message(role, text) for text in texts), 0.0)  # type: ignore[arg-type]
