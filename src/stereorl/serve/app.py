"""The server as an ASGI application; everything it works with is passed in.

request ─▶ Guard (host, key, count) ─▶ routes ─▶ chat.begin ─▶ Exchange ─▶ engine, journal
beside: VersionWatcher (serve.poll_s), close_idle, ActivityFile (1 s)
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI

from stereorl import __version__
from stereorl.config import Config
from stereorl.policy.engine import Engine
from stereorl.policy.render import Renderer
from stereorl.serve import docs, problems, routes
from stereorl.serve.guard import Guard, api_key
from stereorl.serve.journal import Journal
from stereorl.serve.metrics import Metrics
from stereorl.serve.service import Service
from stereorl.serve.sessions import Sessions
from stereorl.serve.watch import ActivityFile, VersionWatcher, close_idle, every
from stereorl.store.store import Store
from stereorl.store.versions import Versions

log = logging.getLogger("stereorl.serve")

_LAST_REPLIES_S = 5.0


def create_app(
    config: Config,
    *,
    engine: Engine,
    store: Store,
    versions: Versions,
    renderer: Renderer,
    model_name: str,
) -> FastAPI:
    """The API over these parts. The caller owns and closes them; the app owns its writer, from start to shutdown.

    Raises ConfigError when the bind address is not loopback and there is no API key.
    """
    key = api_key(config.serve)
    service = Service(
        config=config,
        engine=engine,
        store=store,
        versions=versions,
        renderer=renderer,
        model_name=model_name,
        metrics=Metrics(),
        sessions=Sessions(store, regenerate=config.serve.regenerate),
    )

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        service.opened = Journal(store.writer(batch_ms=config.store.batch_ms), service.metrics)
        watcher = VersionWatcher(service)
        await watcher.look()  # so that the first request meets the version that served last
        tasks = [asyncio.create_task(task) for task in _beside(service, watcher)]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await _last_replies(service)
            await asyncio.to_thread(service.journal.close)

    app = FastAPI(
        title="StereoRL",
        version=__version__,
        description="An OpenAI-compatible server whose model learns from being used.",
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
    )
    app.state.service = service
    app.include_router(routes.router(service))
    app.add_middleware(Guard, config=config.serve, key=key, metrics=service.metrics)
    problems.install(app)
    app.openapi = docs.document(app, keyed=key is not None)  # type: ignore[method-assign]
    return app


def _beside(service: Service, watcher: VersionWatcher) -> list[Coroutine[Any, Any, None]]:
    serve = service.config.serve
    activity = ActivityFile(service, service.config.home_path / "run" / "activity.json")
    return [
        every(serve.poll_s, "look for a new version", watcher.look),
        every(min(30.0, serve.idle_timeout_s / 4), "close idle sessions", lambda: close_idle(service)),
        every(1.0, "tell the learner about activity", activity.tell),
    ]


async def _last_replies(service: Service) -> None:
    """Replies that the server cancelled at shutdown hand their records over before the writer closes."""
    for _ in range(int(_LAST_REPLIES_S / 0.05)):
        if service.in_flight == 0:
            return
        await asyncio.sleep(0.05)
    log.warning("%d replies were still being made at shutdown", service.in_flight)
