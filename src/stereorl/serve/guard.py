"""The door: which hosts and keys are let in; every request that passes or is refused is counted.

A server on loopback takes only the Host names of loopback, so that a web page that rebinds its own name to 127.0.0.1
cannot reach it. No CORS headers are sent. With a key set, every path but /healthz wants it.
"""

from __future__ import annotations

import hmac
import ipaddress
import os

from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from stereorl.config import ServeConfig
from stereorl.errors import ConfigError
from stereorl.serve.metrics import Metrics
from stereorl.serve.problems import problem, render

_OPEN_PATHS = {"/healthz"}


def is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def api_key(config: ServeConfig) -> str | None:
    """The key in the environment, if any. ConfigError when the bind address needs one that is missing."""
    key = os.environ.get(config.api_key_env) or None
    if key is None and not is_loopback(config.host):
        raise ConfigError(
            f"serve.host is '{config.host}', which other machines can reach: set an API key in "
            f"${config.api_key_env} first, or bind to 127.0.0.1."
        )
    return key


class Guard:
    """ASGI middleware, outermost."""

    def __init__(self, app: ASGIApp, *, config: ServeConfig, key: str | None, metrics: Metrics):
        self._app = app
        self._key = None if key is None else key.encode()
        self._metrics = metrics
        own = config.host.strip("[]").lower()
        self._hosts = {"localhost", "127.0.0.1", "::1", own} if is_loopback(config.host) else None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        status: list[int] = []

        async def counted(message: Message) -> None:
            if message["type"] == "http.response.start":
                status.append(message["status"])
            await send(message)

        try:
            refusal = self._refusal(scope)
            await (refusal or self._app)(scope, receive, counted)
        except Exception as error:
            if status:
                raise
            await render(error)(scope, receive, counted)
        finally:
            route = getattr(scope.get("route"), "path", "other")
            self._metrics.requests.labels(route, str(status[0]) if status else "gone").inc()

    def _refusal(self, scope: Scope) -> Response | None:
        headers = Headers(scope=scope)
        if self._hosts is not None and _host_name(headers.get("host", "")) not in self._hosts:
            return problem(
                403,
                "This server answers to localhost only; the Host header names another.",
                code="unknown_host",
            )
        if self._key is None or scope["path"] in _OPEN_PATHS:
            return None
        scheme, _, given = headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer" and hmac.compare_digest(given.strip().encode("latin-1"), self._key):
            return None
        return problem(
            401,
            "Send the API key as 'Authorization: Bearer KEY'.",
            code="invalid_api_key",
            headers={"WWW-Authenticate": "Bearer"},
        )


def _host_name(host: str) -> str:
    """`[::1]:80` -> `::1`, `localhost:80` -> `localhost`."""
    if host.startswith("["):
        return host[1:].partition("]")[0].lower()
    return host.rpartition(":")[0].lower() if ":" in host else host.lower()
