"""The paths of the API. Each reads its input, calls the part that knows, and answers."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter, Header, Request
from fastapi.responses import JSONResponse, Response
from prometheus_client import CONTENT_TYPE_LATEST

from stereorl.data import Feedback
from stereorl.data.turn import TurnKind
from stereorl.errors import NotFoundError, StoreError
from stereorl.serve import body, chat, docs, openai, scoring
from stereorl.serve.service import Service
from stereorl.serve.sessions import Marks

_YES = {"true", "1"}
SessionId = Annotated[
    str | None,
    Header(
        pattern=r"^[A-Za-z0-9._:-]{1,128}(~[0-9a-f]{8})*$",
        description="Names the session, or a fork as an answer named it; wins over recognition.",
    ),
]
TurnType = Annotated[
    str | None,
    Header(pattern=r"^(main|side)$", description="A side turn never trains: summaries, heartbeats."),
]
SessionDone = Annotated[
    str | None,
    Header(pattern=r"^([Tt]rue|[Ff]alse|1|0)$", description="True closes the session after this turn."),
]


def router(service: Service) -> APIRouter:
    api = APIRouter()
    limit = int(service.config.serve.max_body_mb * 1_000_000)
    scores = scoring.Scoring(service)

    @api.post("/v1/chat/completions", **docs.CHAT)
    async def create_chat_completion(
        request: Request,
        x_session_id: SessionId = None,
        x_turn_type: TurnType = None,
        x_session_done: SessionDone = None,
    ) -> Response:
        """The reply to a conversation, whole or streamed; recorded before its end is sent."""
        received = time.perf_counter()
        ask = await body.read(request, openai.ChatRequest, max_bytes=limit)
        kind: TurnKind = "side" if x_turn_type == "side" else "main"
        marks = Marks(x_session_id, kind, (x_session_done or "").lower() in _YES)
        return await chat.begin(service, ask, marks, received=received)

    @api.post("/v1/feedback", **docs.FEEDBACK)
    async def give_feedback(request: Request) -> Response:
        """What a user thinks of a turn: a score, a correction, or both; recorded before the answer."""
        given = await body.read(request, openai.FeedbackRequest, max_bytes=limit)
        turn_id = given.turn_id.removeprefix("chatcmpl-")
        try:
            turn = await asyncio.to_thread(service.store.turn, turn_id)
        except NotFoundError:
            raise NotFoundError(f"There is no turn '{turn_id[:64]}'.") from None
        score: Any = given.score
        feedback = Feedback(turn_id, score, given.correction, time.time())
        await service.journal.commit([feedback], f"feedback on {turn_id}")
        receipt = openai.FeedbackReceipt(turn_id=turn_id, session_id=turn.session_id)
        return JSONResponse(receipt.model_dump())

    @api.post("/v1/score", **docs.SCORE)
    async def score(request: Request) -> Response:
        """Log-probs of a reply's ids under the weights that serve, and the likeliest ids. Nothing is recorded."""
        ask = await body.read(request, scoring.ScoreRequest, max_bytes=limit)
        return JSONResponse((await scores.answer(ask)).model_dump())

    @api.get("/v1/models", **docs.MODELS)
    async def list_models() -> Response:
        """The one model that is served."""
        return JSONResponse(openai.ModelList(data=[_card(service)]).model_dump())

    @api.get("/v1/models/{model_id:path}", **docs.MODEL)
    async def retrieve_model(model_id: str) -> Response:
        """That model, by its name."""
        if model_id != service.model_name:
            raise NotFoundError(
                f"There is no model '{model_id[:64]}' here; '{service.model_name}' is served."
            )
        return JSONResponse(_card(service).model_dump())

    @api.get("/healthz", **docs.HEALTH)
    async def health() -> Response:
        """Whether the server can serve and record, and whether a learner runs beside it."""
        state = await asyncio.to_thread(_health, service)
        return JSONResponse(state.model_dump(), status_code=200 if state.status == "ok" else 503)

    @api.get("/metrics", **docs.METRICS)
    async def metrics() -> Response:
        """Prometheus' exposition text."""
        meters = service.metrics
        meters.in_flight.set(service.in_flight)
        meters.policy_version.set(service.engine.version)
        meters.queue_depth.set(service.journal.depth)
        text = await asyncio.to_thread(meters.scrape, service.store)
        return Response(text, media_type=CONTENT_TYPE_LATEST)

    return api


def _card(service: Service) -> openai.ModelCard:
    return openai.ModelCard(
        id=service.model_name, created=service.started_at, policy_version=service.engine.version
    )


def _health(service: Service) -> openai.Health:
    store = "ok"
    try:
        service.store.schema_version()
    except StoreError as error:
        store = str(error)
    return openai.Health(
        status="ok" if store == "ok" else "degraded",
        policy_version=service.engine.version,
        model=service.model_name,
        store=store,
        learner="running" if _alive(service.config.home_path / "run" / "learn.lock") else "absent",
    )


def _alive(lock: Path) -> bool:
    """True when the process whose id the learner's lock file holds exists."""
    try:
        os.kill(int(lock.read_text(encoding="utf-8")), 0)
    except PermissionError:
        return True
    except (OSError, ValueError, OverflowError):
        return False
    return True
