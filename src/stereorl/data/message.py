"""One chat message in a canonical form, so that equal messages hash alike whatever client sent them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A function call in an assistant message; `arguments` is JSON text exactly as written."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Message:
    """`role` is system, user, assistant or tool; `content` is plain text ("" when there is none)."""

    role: str
    content: str = ""
    name: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None

    def as_dict(self) -> dict[str, Any]:
        """The OpenAI shape, without absent fields."""
        out: dict[str, Any] = {"role": self.role, "content": self.content}
        if self.name is not None:
            out["name"] = self.name
        if self.tool_calls:
            out["tool_calls"] = [
                {"id": c.id, "type": "function", "function": {"name": c.name, "arguments": c.arguments}}
                for c in self.tool_calls
            ]
        if self.tool_call_id is not None:
            out["tool_call_id"] = self.tool_call_id
        return out

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Message:
        """Inverse of `as_dict`; the caller has validated the shape."""
        calls = tuple(
            ToolCall(c.get("id", ""), c["function"]["name"], c["function"]["arguments"])
            for c in data.get("tool_calls") or ()
        )
        return cls(data["role"], data.get("content") or "", data.get("name"), calls, data.get("tool_call_id"))

    def digest(self) -> str:
        """sha256 of the canonical JSON; the key of this message in the store."""
        text = json.dumps(self.as_dict(), sort_keys=True, ensure_ascii=False, separators=(",", ":"))
        return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def chain_keys(messages: Iterable[Message]) -> Iterator[str]:
    """The `chain_key` of every non-empty prefix, shortest first, at the price of one."""
    chain = hashlib.sha256()
    for message in messages:
        calls = [[c.name, c.arguments] for c in message.tool_calls]
        line = json.dumps([message.role, message.content.strip(), calls], ensure_ascii=False)
        chain.update(line.encode("utf-8", "surrogatepass") + b"\n")
        yield chain.hexdigest()


def chain_key(messages: Iterable[Message]) -> str:
    """Hash of a conversation, for finding the turn that a request continues.

    Outer white space of contents is ignored and so are tool-call ids, which clients trim and rename.
    """
    key = hashlib.sha256().hexdigest()
    for key in chain_keys(messages):  # noqa: B007 - the last one counts
        pass
    return key
