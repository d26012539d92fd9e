"""What a model is shown of a turn: request, reply and next state, each fenced and bounded. Pure.

The request is what was said from the user's last message on. What the user wrote and what a tool or an environment
returned are fenced apart, so neither can be taken for the other. A hint writer is shown the user's words alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from string import Template

from stereorl.data import Feedback, Message, NextState, Turn
from stereorl.signals.fence import fence
from stereorl.signals.hints import own_words
from stereorl.signals.user_words import is_output, user_text

_MANY = 40  # messages of one kind that are looked at


@dataclass(frozen=True, slots=True)
class Limits:
    """Most characters of each part, about."""

    request: int
    reply: int
    next_state: int


FULL = Limits(4000, 4000, 4000)
SMALL = Limits(300, 300, 500)


@cache
def prompt(name: str) -> str:
    """The text of `prompts/<name>.txt`."""
    return files("stereorl.signals").joinpath("prompts", f"{name}.txt").read_text(encoding="utf-8").strip()


def messages(kind: str, turn: Turn, next_state: NextState, *, nonce: str) -> tuple[Message, ...]:
    """The system and the user message that ask a chat model for a "verdict" or a "hint"."""
    case = Template(prompt(f"{kind}_case")).substitute(
        request=shown_request(turn.messages, FULL.request, nonce=nonce, tools=kind != "hint"),
        reply=shown_reply(turn.reply, FULL.reply, nonce=nonce),
        next_state=shown_next(next_state, FULL.next_state, nonce=nonce, tools=kind != "hint"),
    )
    return Message("system", prompt(kind)), Message("user", case)


def small_case(turn: Turn, next_state: NextState) -> Message:
    """The same parts for a small model: shorter, and no nonce, so that its examples look just alike."""
    parts = (
        shown_request(turn.messages, SMALL.request),
        shown_reply(turn.reply, SMALL.reply),
        shown_next(next_state, SMALL.next_state),
    )
    return Message("user", "\n".join(parts))


def small_words(next_state: NextState) -> Message:
    """The user's words alone: a small model that is shown the reply too copies from it."""
    return Message("user", shown_next(next_state, SMALL.next_state, tools=False))


def shown_request(request: Sequence[Message], limit: int, *, nonce: str = "", tools: bool = True) -> str:
    users = [at for at, m in enumerate(request) if m.role == "user" and not is_output(m.content)]
    recent = request[users[-1] :] if users else request[-1:]
    recent = [m for m in recent if tools or not _from_environment(m)][-_MANY:]
    lines = [_told(m) if len(recent) == 1 else f"{m.role}: {_told(m)}" for m in recent]
    return fence("request", "\n".join(lines), limit=limit, nonce=nonce)


def shown_reply(reply: Message, limit: int, *, nonce: str = "") -> str:
    return fence("reply", _told(reply), limit=limit, nonce=nonce)


def shown_next(next_state: NextState, limit: int, *, nonce: str = "", tools: bool = True) -> str:
    """One fence for the user's words and one for what tools returned; those that there are.

    Without `tools` (for a hint) only the user's own words: nothing returned, nothing pasted.
    """
    words = user_text(next_state.messages) if tools else own_words(next_state.messages)
    returned = "\n".join(m.content for m in next_state.messages[:_MANY] if _from_environment(m))
    fences = [fence("user", words, limit=limit, nonce=nonce)] if words.strip() else []
    if returned.strip() and tools:
        fences.append(fence("tool", returned, limit=limit, nonce=nonce))
    return "\n".join(fences)


def says_nothing(next_state: NextState | None, feedback: Sequence[Feedback] = ()) -> str | None:
    """Why a model need not be asked about this next state: it holds no new words, or a score has decided."""
    if any(f.score is not None for f in feedback):
        return "an explicit score decides"
    if next_state is None:
        return "no next state"
    if next_state.kind == "regenerate":
        return "no new words of the user's"
    return None if shown_next(next_state, 200) else "an empty next state"


def _told(message: Message) -> str:
    calls = [f"[calls {c.name} {c.arguments}]" for c in message.tool_calls]
    return "\n".join([*([message.content] if message.content.strip() else []), *calls])


def _from_environment(message: Message) -> bool:
    return message.role == "tool" or (message.role == "user" and is_output(message.content))
