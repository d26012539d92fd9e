"""A reply while it is made: tokens in, text that may be shown out, then one record that is the truth about it.

engine ──token──▶ LiveTurn.pieces ──text, stop strings held back──▶ exchange ──▶ client
                      │ complete                     │ hung up, or the engine failed
                      ▼                              ▼
                    commit (awaited)              abandon (handed to the writer, not awaited)
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import AsyncGenerator
from concurrent.futures import Future
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Literal, cast

import numpy as np

from stereorl import faults
from stereorl.data import Message, Sampling, Turn
from stereorl.data.turn import FinishReason
from stereorl.errors import EngineError, MisalignedError, StereoError
from stereorl.policy.engine import GenerateRequest, Token
from stereorl.serve.service import Service
from stereorl.serve.sessions import Place
from stereorl.serve.stops import StopScanner
from stereorl.store.records import Record, SessionEvent

log = logging.getLogger("stereorl.serve")


@dataclass(frozen=True, slots=True)
class Ask:
    """A request in the system's own words."""

    turn_id: str
    messages: tuple[Message, ...]
    tools: tuple[dict[str, Any], ...]
    prompt_ids: tuple[int, ...]
    sampling: Sampling
    received_at: float  # wall clock
    received: float  # time.perf_counter()


@dataclass(frozen=True, slots=True)
class Piece:
    """What one token added: text that may be shown, often one word, sometimes ""."""

    text: str
    token: Token


class LiveTurn:
    """One reply; `finish_reason` is set once it is complete."""

    def __init__(self, service: Service, ask: Ask, place: Place):
        self.ask = ask
        self.place = place
        self.tokens: list[Token] = []
        self.text = ""
        self.finish_reason: FinishReason | None = None
        self._service = service
        self._handed_over = False
        self._arrival: Future[None] | None = None
        self._last_at = ask.received

    @property
    def version(self) -> int:
        """The version that sampled the last token."""
        return self.tokens[-1].version if self.tokens else self._service.engine.version

    def arrive(self) -> None:
        """What the request itself tells (the next state of the turn before) is recorded at once."""
        if self.place.arrival:
            self._arrival = self._service.journal.submit(self.place.arrival, "a next state")

    async def pieces(self) -> AsyncGenerator[Piece, None]:
        """The reply, token by token. Closing this early cancels the engine's request."""
        stream = self._service.renderer.stream()
        scanner = StopScanner(self.ask.sampling.stop)
        request = GenerateRequest(self.ask.turn_id, self.ask.prompt_ids, self.ask.sampling)
        tokens = cast("AsyncGenerator[Token, None]", self._service.engine.generate(request))
        async with aclosing(tokens):
            async for token in tokens:
                self._take(token)
                text = "" if token.finish_reason == "stop" else stream.push(token.token_id)
                if token.finish_reason is not None:
                    text += stream.flush()
                shown = scanner.push(text)
                if token.finish_reason is not None and not scanner.hit:
                    shown += scanner.flush()
                self.finish_reason = "stop_string" if scanner.hit else token.finish_reason
                self.text += shown
                yield Piece(shown, token)
                if self.finish_reason is not None:
                    break
        if self.finish_reason is None:
            raise EngineError("The engine ended a reply without saying why.")
        faults.point("serve.generated")

    def _take(self, token: Token) -> None:
        if not math.isfinite(token.log_prob):
            raise EngineError(f"The engine sampled a token whose log-prob is {token.log_prob}.")
        now = time.perf_counter()
        meters = self._service.metrics
        if not self.tokens:
            faults.point("serve.generating")
            meters.first_token_seconds.observe(now - self._last_at)
            meters.tokens.labels("prompt").inc(len(self.ask.prompt_ids))
        else:
            meters.token_gap_seconds.observe(now - self._last_at)
        meters.tokens.labels("reply").inc()
        self._last_at = now
        self.tokens.append(token)

    async def commit(self) -> None:
        """Return once the complete turn is durable (invariant 4). Raises StoreError, and nothing is acknowledged."""
        assert self.finish_reason is not None
        records: list[Record] = [self.place.opening, self._turn(self.finish_reason)]
        if self.place.done:
            records.append(SessionEvent(self.place.session_id, "closed", "done", time.time()))
        journal = self._service.journal
        faults.point("serve.before_commit")
        self._handed_over = True
        self._service.metrics.turns.labels(self.finish_reason).inc()
        await journal.commit(records, f"turn {self.ask.turn_id}")
        await self._settle_arrival()
        faults.point("serve.after_commit")

    async def _settle_arrival(self) -> None:
        """The next state that came with the request is durable too; what failed then is tried once more."""
        if self._arrival is None:
            return
        journal = self._service.journal
        try:
            await journal.settle(self._arrival, "a next state")
        except StereoError:
            journal.submit(self.place.arrival, "a next state, second try")

    def abandon(self, reason: Literal["cancelled", "error"]) -> None:
        """Record what there is of a reply that nobody will get; such a turn never trains. Waits for nothing."""
        if self._handed_over:
            return
        self._handed_over = True
        self.finish_reason = reason
        name = f"turn {self.ask.turn_id}"
        log.info("%s ended early (%s) after %d tokens", name, reason, len(self.tokens))
        try:
            turn = self._turn(reason)
        except MisalignedError as error:
            log.error("Not recorded: %s", error)
            return
        self._service.metrics.turns.labels(reason).inc()
        self._service.journal.submit([self.place.opening, turn], name)  # which drops it, by name

    def _turn(self, finish_reason: FinishReason) -> Turn:
        return Turn(
            turn_id=self.ask.turn_id,
            session_id=self.place.session_id,
            index=self.place.index,
            kind=self.place.kind,
            messages=self.ask.messages,
            reply=Message("assistant", self.text),
            prompt_ids=np.array(self.ask.prompt_ids, np.int32),
            response_ids=np.array([token.token_id for token in self.tokens], np.int32),
            log_probs=np.array([token.log_prob for token in self.tokens], np.float32),
            versions=np.array([token.version for token in self.tokens], np.int32),
            sampling=self.ask.sampling,
            finish_reason=finish_reason,
            model=self._service.model_name,
            created_at=self.ask.received_at,
            parent_turn_id=self.place.parent_turn_id,
            tools=self.ask.tools,
        )
