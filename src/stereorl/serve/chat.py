"""From a chat request to a live turn: its place in a session, its prompt's ids, its sampling."""

from __future__ import annotations

import asyncio
import json
import logging
import time
import uuid

from stereorl import faults
from stereorl.data import Sampling
from stereorl.errors import ContextLengthError, RequestError
from stereorl.serve.exchange import Exchange
from stereorl.serve.live import Ask, LiveTurn
from stereorl.serve.openai import ChatRequest
from stereorl.serve.service import Service
from stereorl.serve.sessions import Marks, Place

log = logging.getLogger("stereorl.serve")

COLDEST = 0.01  # below, logits divided by it lose their digits; the reply is the greedy one anyway


async def begin(service: Service, request: ChatRequest, marks: Marks, *, received: float) -> Exchange:
    """The exchange that will answer `request`. RequestError when it cannot be served."""
    faults.point("serve.received")
    now = service.last_request_at = time.time()
    _admit(service)
    tools = request.tool_dicts()
    try:
        json.dumps(tools, allow_nan=False)
    except ValueError:
        raise RequestError(
            "'tools': NaN and Infinity are not JSON.", code="invalid_value", param="tools"
        ) from None
    messages = request.canonical()
    place = await asyncio.to_thread(service.sessions.place, messages, marks, now)
    try:
        prompt_ids = tuple(await asyncio.to_thread(service.renderer.encode, messages, tools))
        sampling = _sampling(service, request, len(prompt_ids))
    except RequestError:
        _keep_next_state(service, place)
        raise
    if place.opening.forked_from is not None:
        service.metrics.forks_seen.inc()
        log.info("History of session %s was rewritten; forked as %s", marks.session_id, place.session_id)
    ask = Ask(uuid.uuid4().hex, messages, tools, prompt_ids, sampling, now, received)
    live = LiveTurn(service, ask, place)
    live.arrive()
    return Exchange(service, live, request)


def _admit(service: Service) -> None:
    settings = service.config.engine
    if service.engine.load >= settings.max_concurrent + settings.max_queue:
        raise RequestError(
            f"{settings.max_queue} requests are waiting already; try again shortly.",
            status=429,
            code="rate_limit_exceeded",
        )


def _keep_next_state(service: Service, place: Place) -> None:
    """A request that cannot be answered (too long, say) still tells what its user thought of the reply before."""
    if place.arrival:
        service.journal.submit(place.arrival, "the next state in a refused request")


def _sampling(service: Service, request: ChatRequest, prompt: int) -> Sampling:
    defaults = service.config.serve
    context = service.renderer.context_length
    room = context - prompt
    if room < 1:
        raise ContextLengthError(
            f"The prompt has {prompt} tokens and this model's context holds {context}, prompt and reply together. "
            "Shorten the messages or start a new conversation."
        )
    asked = request.max_completion_tokens or request.max_tokens or defaults.default_max_tokens
    temperature = defaults.default_temperature if request.temperature is None else request.temperature
    return Sampling(
        temperature=temperature if temperature >= COLDEST else 0.0,
        top_p=1.0 if request.top_p is None else request.top_p,
        top_k=max(request.top_k or 0, 0),
        max_tokens=min(asked, room),
        seed=request.seed,
        stop=request.stops(),
    )
