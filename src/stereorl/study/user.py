"""A scripted user: holds real sessions over HTTP with the `openai` client and reacts to what the model really wrote.

    ask ──▶ reply ──▶ kept?  ── yes ──▶ thanks, session done
              ▲         └─ no ─▶ complaint ──▶ reply ... at most `turns` replies, then a last complaint, session done

The closing message is the next state of the reply before it. Its own reply is not wanted: one token is asked for, and
that turn never trains, because nothing follows it. No session id is sent: the server recognises the conversation by
its prefix, as for any plain client.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from stereorl.study.personas import Persona, words

if TYPE_CHECKING:
    from openai import OpenAI

CLOSING_TOKENS = 1


@dataclass(frozen=True)
class Reply:
    """One answer as a client sees it, with its turn in the store and whether the persona is content."""

    turn_id: str
    prompt: str
    text: str
    finish_reason: str
    kept: bool

    @property
    def words(self) -> int:
        return words(self.text)

    @property
    def ended(self) -> bool:
        return self.finish_reason == "stop"


@dataclass(frozen=True)
class SessionResult:
    """One session's replies in order; its score is +1 for each kept reply and -1 for each broken one."""

    number: int
    replies: tuple[Reply, ...]

    @property
    def first_kept(self) -> bool:
        return self.replies[0].kept

    @property
    def score(self) -> float:
        return sum(1 if reply.kept else -1 for reply in self.replies) / len(self.replies)


@dataclass(frozen=True)
class Asking:
    """How replies are asked for."""

    max_tokens: int = 48
    temperature: float = 0.6


def connect(url: str, api_key: str | None = None, *, timeout_s: float = 300) -> OpenAI:
    """A client for our own server: no retries, because each request becomes a turn, and no proxy on the way."""
    from openai import DefaultHttpxClient, OpenAI

    transport = DefaultHttpxClient(trust_env=False, timeout=timeout_s)
    return OpenAI(base_url=f"{url}/v1", api_key=api_key or "none", max_retries=0, http_client=transport)


def ask(
    client: OpenAI,
    messages: Sequence[dict[str, str]],
    persona: Persona,
    asking: Asking,
    *,
    seed: int | None = None,
    headers: dict[str, str] | None = None,
) -> Reply:
    """One request, one reply."""
    payload: Any = list(messages)
    answer = client.chat.completions.create(
        model="stereorl",
        messages=payload,
        max_tokens=asking.max_tokens,
        temperature=asking.temperature,
        seed=seed,
        extra_headers=headers or {},
    )
    choice = answer.choices[0]
    text = choice.message.content or ""
    kept = persona.check(text, choice.finish_reason)
    return Reply(turn_id_of(answer.id), messages[-1]["content"], text, choice.finish_reason, kept)


def turn_id_of(completion_id: str) -> str:
    """The turn in the store that an answer's id names."""
    return completion_id.removeprefix("chatcmpl-")


class ScriptedUser:
    """Holds sessions with one persona; its choice of words depends on the seed and the session's number only."""

    def __init__(
        self, client: OpenAI, persona: Persona, *, turns: int = 2, seed: int = 0, asking: Asking = Asking()
    ):
        self.client = client
        self.persona = persona
        self.turns = turns
        self.seed = seed
        self.asking = asking

    def hold(self, number: int, question: str) -> SessionResult:
        """One session from the question to the closing message."""
        choice = random.Random(f"{self.seed}/{number}")
        complaints = choice.sample(self.persona.complaints, k=len(self.persona.complaints))
        messages = [{"role": "user", "content": question}]
        replies: list[Reply] = []
        while True:
            reply = ask(self.client, messages, self.persona, self.asking, seed=choice.randrange(2**31))
            replies.append(reply)
            reaction = (
                choice.choice(self.persona.thanks)
                if reply.kept
                else complaints[len(replies) % len(complaints)]
            )
            messages += [{"role": "assistant", "content": reply.text}, {"role": "user", "content": reaction}]
            if reply.kept or len(replies) == self.turns:
                break
        self._close(messages)
        return SessionResult(number, tuple(replies))

    def _close(self, messages: list[dict[str, str]]) -> None:
        asking = Asking(CLOSING_TOKENS, self.asking.temperature)
        ask(self.client, messages, self.persona, asking, headers={"X-Session-Done": "true"})


def hold_sessions(
    user: ScriptedUser,
    questions: Sequence[str],
    *,
    concurrent: int,
    may_start: Callable[[], None] = lambda: None,
    done: Callable[[SessionResult], None] = lambda result: None,
) -> list[SessionResult]:
    """All sessions, `concurrent` at a time, in the order of their numbers.

    `may_start` is called before each session and may wait there (a real user is slower than a learner); `done` is
    called from the sessions' threads. The first exception ends the run: sessions not yet begun are cancelled.
    """

    def one(number: int, question: str) -> SessionResult:
        may_start()
        result = user.hold(number, question)
        done(result)
        return result

    with ThreadPoolExecutor(concurrent, thread_name_prefix="user") as pool:
        futures = [pool.submit(one, number, question) for number, question in enumerate(questions)]
        try:
            return [future.result() for future in futures]
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
