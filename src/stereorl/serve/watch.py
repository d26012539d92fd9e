"""What goes on beside the requests: new versions are taken up, idle sessions closed, activity told to the learner."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from stereorl.serve.service import Service
from stereorl.store.records import SessionEvent

log = logging.getLogger("stereorl.serve")


async def every(seconds: float, what: str, act: Callable[[], Awaitable[None]]) -> None:
    """Do `act` for ever; a failure is logged once per kind and does not end it."""
    last = ""
    while True:
        try:
            await act()
            last = ""
        except Exception as error:
            if repr(error) != last:
                last = repr(error)
                log.exception("Failed to %s; trying again every %g s", what, seconds)
        await asyncio.sleep(seconds)


class VersionWatcher:
    """Takes up the version that CURRENT names. A bad one is refused, and the old one keeps serving."""

    def __init__(self, service: Service, *, retry_s: float = 30.0):
        self._service = service
        self._refused: tuple[int, str] | None = None
        self._retry_s = retry_s
        self._retry_at = 0.0

    async def look(self) -> None:
        service = self._service
        wanted = -1
        try:
            wanted = await asyncio.to_thread(service.versions.current)
            if wanted == service.engine.version:
                self._refused = None
                return
            if self._refused and self._refused[0] == wanted and time.monotonic() < self._retry_at:
                return
            path = await asyncio.to_thread(self._checked, wanted)
            await service.engine.use_version(wanted, path)
        except Exception as error:
            self._refuse(wanted, error)
            return
        self._refused = None
        service.metrics.swaps.inc()
        service.metrics.policy_version.set(service.engine.version)
        log.info("Serving version %d", service.engine.version)

    def _checked(self, wanted: int) -> Path | None:
        if wanted:
            self._service.versions.verify(wanted)
        return self._service.versions.path(wanted)

    def _refuse(self, wanted: int, error: Exception) -> None:
        """Log and count once, not at every look; try again now and then, for it may have been a full memory."""
        self._retry_at = time.monotonic() + self._retry_s
        if self._refused == (wanted, str(error)):
            return
        self._refused = (wanted, str(error))
        self._service.metrics.bad_versions.inc()
        name = "the current version" if wanted < 0 else f"version {wanted}"
        log.error(
            "Cannot take up %s: %s. Version %d keeps serving.", name, error, self._service.engine.version
        )


async def close_idle(service: Service) -> None:
    """Close sessions that nobody has used for `serve.idle_timeout_s`."""
    now = time.time()
    idle = await asyncio.to_thread(service.sessions.idle, now - service.config.serve.idle_timeout_s)
    idle = [session_id for session_id in idle if not service.sessions.busy(session_id)]
    if not idle:
        return
    await service.journal.commit([SessionEvent(i, "closed", "idle", now) for i in idle], "idle sessions")
    log.info("Closed %d idle sessions", len(idle))


class ActivityFile:
    """home/run/activity.json {in_flight, last_request_at}, for a learner that waits until nobody is served."""

    def __init__(self, service: Service, path: Path):
        self._service = service
        self._path = path
        self._told: tuple[int, float] | None = None

    async def tell(self) -> None:
        seen = (self._service.in_flight, self._service.last_request_at)
        if seen != self._told:
            write_json(self._path, {"in_flight": seen[0], "last_request_at": seen[1]})
            self._told = seen


def write_json(path: Path, data: dict[str, Any]) -> None:
    """Readers see the old content or the new one, never a part."""
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    aside.write_text(json.dumps(data), encoding="utf-8")
    aside.replace(path)
