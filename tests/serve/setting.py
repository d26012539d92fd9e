"""A server over a scripted engine: everything but the model is real; engine and tokenizer are stand-ins."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import uvicorn

from stereorl.config import Config, load_config
from stereorl.data import Message, Turn
from stereorl.errors import ContextLengthError
from stereorl.policy.engine import GenerateRequest, Scores, Token
from stereorl.serve.app import create_app
from stereorl.store.versions import Versions

END = 0


class WordRenderer:
    """One id per word; ids are given out as words come."""

    def __init__(self, context_length: int = 10_000_000):
        self.context_length = context_length
        self.eos_ids = frozenset({END})
        self._words: list[str] = [""]
        self._ids: dict[str, int] = {"": END}
        self._lock = threading.Lock()

    def id(self, word: str) -> int:
        with self._lock:
            if word not in self._ids:
                self._ids[word] = len(self._words)
                self._words.append(word)
            return self._ids[word]

    def encode(self, messages: Sequence[Message], tools: Sequence[dict[str, Any]] = ()) -> list[int]:
        text = " ".join(f"<{m.role}> {m.content}" for m in messages) + (
            f" tools:{len(tools)}" if tools else ""
        )
        return [self.id(word) for word in text.split()]

    def decode(self, ids: Sequence[int]) -> str:
        return "".join(self._words[i] for i in ids)

    def stream(self) -> _Stream:
        return _Stream(self)


class _Stream:
    def __init__(self, renderer: WordRenderer):
        self._renderer = renderer

    def push(self, token_id: int) -> str:
        return self._renderer.decode([token_id])

    def flush(self) -> str:
        return ""


@dataclass
class ScriptedEngine:
    """Says what `script` gives for the n-th request, word by word; "" ends a reply with the end token."""

    renderer: WordRenderer
    script: Callable[[int], list[str]] = lambda n: ["Hello", " there", "!", ""]
    delay_s: float = 0.0
    fail_after: int | None = None
    failure: Exception | None = None
    version: int = 0
    load: int = 0
    log_prob: float = -0.5
    requests: list[GenerateRequest] = field(default_factory=list)
    cancelled: list[str] = field(default_factory=list)
    used: list[tuple[int, Path | None]] = field(default_factory=list)
    refuse: set[int] = field(default_factory=set)
    hold: asyncio.Event | None = None  # when set: wait for it before the third token

    async def generate(self, request: GenerateRequest) -> AsyncIterator[Token]:
        self.requests.append(request)
        words = self.script(len(self.requests) - 1)
        if len(request.prompt_ids) + 1 > self.renderer.context_length:
            raise ContextLengthError("too long")
        done = False
        try:
            for i, word in enumerate(words[: request.sampling.max_tokens]):
                if i == self.fail_after:
                    raise self.failure or RuntimeError("the engine broke")
                if i == 2 and self.hold is not None:
                    await self.hold.wait()
                await asyncio.sleep(self.delay_s)
                last = i + 1 == min(len(words), request.sampling.max_tokens)
                reason = None if not last else "stop" if word == "" else "length"
                done = last
                yield Token(self.renderer.id(word), self.log_prob, self.version, reason)
        finally:
            if not done:
                self.cancelled.append(request.request_id)

    async def score(
        self,
        prompt_ids: tuple[int, ...],
        response_ids: tuple[int, ...],
        *,
        temperature: float,
        top_k: int = 0,
    ) -> Scores:
        """The same log-prob everywhere; the likeliest ids are 0, 1, 2 ..."""
        if len(prompt_ids) + len(response_ids) > self.renderer.context_length:
            raise ContextLengthError("too long", param="prompt_ids")
        await asyncio.sleep(self.delay_s)
        own = np.full(len(response_ids), self.log_prob / temperature, np.float32)
        if not top_k:
            return Scores(own)
        top = np.tile(np.arange(top_k, dtype=np.int32), (len(own), 1))
        return Scores(own, top, np.tile(own[:, None], (1, top_k)))

    async def use_version(self, version: int, path: Path | None) -> None:
        if version in self.refuse:
            raise ValueError(f"version {version} holds NaN")
        self.version = version
        self.used.append((version, path))

    async def close(self) -> None:
        pass


@dataclass
class Setup:
    """Everything a test may want to look at or to bend before the app is made."""

    home: Path
    store: Any
    engine: ScriptedEngine
    renderer: WordRenderer
    overrides: dict[str, Any] = field(default_factory=dict)

    @property
    def config(self) -> Config:
        return load_config(overrides={"home": str(self.home), **self.overrides}).config

    @property
    def versions(self) -> Versions:
        return Versions(self.config.versions_path)

    def app(self) -> Any:
        return create_app(
            self.config,
            engine=self.engine,
            store=self.store,
            versions=self.versions,
            renderer=self.renderer,  # type: ignore[arg-type]
            model_name="tiny",
        )

    @asynccontextmanager
    async def client(self, **headers: str) -> AsyncIterator[httpx.AsyncClient]:
        """An in-process client of a fresh app, within the app's life."""
        app = self.app()
        async with app.router.lifespan_context(app):
            transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
            async with httpx.AsyncClient(
                transport=transport, base_url="http://127.0.0.1", headers=headers, timeout=30
            ) as client:
                yield client

    @contextmanager
    def server(self) -> Iterator[str]:
        """A real server in a thread; its URL."""
        server = uvicorn.Server(
            uvicorn.Config(self.app(), port=0, log_level="warning", ws="none", timeout_graceful_shutdown=3)
        )
        thread = threading.Thread(target=server.run, daemon=True)
        thread.start()
        while not server.started:
            assert thread.is_alive(), "the server did not start"
            threading.Event().wait(0.01)
        port = server.servers[0].sockets[0].getsockname()[1]
        try:
            yield f"http://127.0.0.1:{port}"
        finally:
            server.should_exit = True
            thread.join(15)
            assert not thread.is_alive(), "the server did not stop"

    def turns(self) -> list[Turn]:
        """Every turn in the store, oldest first."""
        ids = [turn for row in self.store.sessions(limit=1000) for turn in self.store.session_turns(row.id)]
        return sorted((self.store.turn(i) for i in ids), key=lambda turn: turn.created_at)


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def assistant(text: str) -> dict[str, str]:
    return {"role": "assistant", "content": text}


async def say(
    client: httpx.AsyncClient, messages: list[dict[str, Any]], headers: Any = None, **more: Any
) -> Any:
    """The response to a plain chat request."""
    return await client.post(
        "/v1/chat/completions", json={"model": "x", "messages": messages, **more}, headers=headers
    )
