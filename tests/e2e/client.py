"""A client that writes down what it was told: the ledger against which the store is compared."""

from __future__ import annotations

import json
import threading
from dataclasses import dataclass, field

import httpx

CORRECTION = "No, that is wrong. Please answer in one short sentence."


@dataclass(frozen=True)
class Acknowledged:
    """A reply whose end the client has seen; `follows` is the turn that this request continued."""

    turn_id: str
    text: str
    follows: str | None


@dataclass
class Ledger:
    """Thread-safe list of acknowledged turns."""

    entries: list[Acknowledged] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, entry: Acknowledged) -> None:
        with self._lock:
            self.entries.append(entry)


def ask(url: str, messages: list[dict[str, str]], *, stream: bool, done: bool = False) -> tuple[str, str]:
    """(turn id, text) of one complete reply. Raises httpx.HTTPError when the server dies or refuses."""
    body = {"model": "any", "messages": messages, "max_tokens": 12, "temperature": 1.0, "stream": stream}
    headers = {"X-Session-Done": "true"} if done else {}
    if not stream:
        response = httpx.post(url + "/v1/chat/completions", json=body, headers=headers, timeout=60)
        response.raise_for_status()
        data = response.json()
        return data["id"].removeprefix("chatcmpl-"), data["choices"][0]["message"]["content"] or ""
    text, turn_id, ended = "", "", False
    with httpx.stream(
        "POST", url + "/v1/chat/completions", json=body, headers=headers, timeout=60
    ) as response:
        response.raise_for_status()
        try:
            for line in response.iter_lines():
                if not line.startswith("data: ") or line == "data: [DONE]":
                    continue
                chunk = json.loads(line[6:])
                if "error" in chunk:
                    raise httpx.RemoteProtocolError(str(chunk["error"]))
                turn_id = chunk["id"].removeprefix("chatcmpl-")
                for choice in chunk["choices"]:
                    text += choice["delta"].get("content") or ""
                    ended = ended or choice["finish_reason"] is not None
        except httpx.HTTPError:
            if not ended:  # once the finish chunk was seen the reply counts as acknowledged, whatever follows
                raise
    if not ended:
        raise httpx.RemoteProtocolError("the stream ended without a finish reason")
    return turn_id, text


def hold_session(url: str, opening: str, ledger: Ledger, *, stream: bool) -> None:
    """Ask, correct, and leave; every reply that came to its end goes into the ledger."""
    messages = [{"role": "user", "content": opening}]
    first, text = ask(url, messages, stream=stream)
    ledger.add(Acknowledged(first, text, None))
    messages += [{"role": "assistant", "content": text}, {"role": "user", "content": CORRECTION}]
    second, text = ask(url, messages, stream=not stream, done=True)
    ledger.add(Acknowledged(second, text, first))


def hold_sessions(url: str, ledger: Ledger, *, tag: str, count: int) -> None:
    """`count` sessions at once; a server that dies under them ends them quietly."""

    def run(number: int) -> None:
        try:
            hold_session(url, f"Question {tag}-{number}: what is a lake?", ledger, stream=number % 2 == 0)
        except (httpx.HTTPError, OSError):
            return

    threads = [threading.Thread(target=run, args=(n,)) for n in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
        assert not thread.is_alive(), "a client hangs"
