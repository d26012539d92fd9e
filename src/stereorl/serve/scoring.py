"""POST /v1/score: log-probs of given ids under the weights that serve. What a remote teacher is asked.

Scores run one after another: each is a forward pass of its own beside the replies, and the threads that they would
wait in are the same that recording needs.
"""

from __future__ import annotations

import asyncio
from typing import Annotated

import numpy as np
from pydantic import BaseModel, Field

from stereorl.errors import ContextLengthError, EngineError, RequestError
from stereorl.policy.engine import Scores
from stereorl.serve.openai import WHOLE, Read
from stereorl.serve.service import Service

Id = Annotated[int, Field(ge=0, lt=2**31), WHOLE]


class ScoreRequest(Read):
    """`POST /v1/score`. Prompt and response together must fit the context; ids lie within the vocabulary."""

    model: str | None = Field(None, description="Any name is accepted: one model is served.")
    prompt_ids: list[Id] = Field(min_length=1, fail_fast=True)
    response_ids: list[Id] = Field(min_length=1, fail_fast=True)
    temperature: float = Field(1.0, ge=0.01, le=100, description="Log-probs are of logits / temperature.")
    top_k: Annotated[int, Field(ge=0, le=100), WHOLE] = Field(
        0, description="How many of the likeliest ids are reported at each position."
    )


class ScoreAnswer(BaseModel):
    """Per response token. `top_ids` and `top_log_probs` come best first, and are null when none were asked for."""

    log_probs: list[float]
    top_ids: list[list[int]] | None
    top_log_probs: list[list[float]] | None
    policy_version: int


class Scoring:
    """The scores of one server."""

    def __init__(self, service: Service):
        self._service = service
        self._turn = asyncio.Lock()
        self._waiting = 0

    async def answer(self, ask: ScoreRequest) -> ScoreAnswer:
        """RequestError 429 when too many wait already; ContextLengthError; other refusals come from the engine."""
        total, context = len(ask.prompt_ids) + len(ask.response_ids), self._service.renderer.context_length
        if total > context:
            raise ContextLengthError(
                f"{total} ids exceed the model's context of {context} tokens.", param="prompt_ids"
            )
        most = self._service.config.engine.max_queue
        if self._waiting >= most:
            raise RequestError(
                f"{most} scores are waiting already; try again shortly.",
                status=429,
                code="rate_limit_exceeded",
            )
        self._waiting += 1
        try:
            async with self._turn:
                return await self._score(ask)
        finally:
            self._waiting -= 1

    async def _score(self, ask: ScoreRequest) -> ScoreAnswer:
        engine = self._service.engine
        prompt_ids, response_ids = tuple(ask.prompt_ids), tuple(ask.response_ids)
        while True:
            version = engine.version
            scores = await engine.score(
                prompt_ids, response_ids, temperature=ask.temperature, top_k=ask.top_k
            )
            if engine.version == version:  # else a swap came between, and nobody knows whose scores these are
                return _answer(scores, version)


def _answer(scores: Scores, version: int) -> ScoreAnswer:
    top = scores.top_log_probs
    if not np.isfinite(scores.log_probs).all() or (top is not None and not np.isfinite(top).all()):
        raise EngineError("A log-prob is not finite.")
    return ScoreAnswer(
        log_probs=scores.log_probs.tolist(),
        top_ids=None if scores.top_ids is None else scores.top_ids.tolist(),
        top_log_probs=None if top is None else top.tolist(),
        policy_version=version,
    )
