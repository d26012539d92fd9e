"""Errors in OpenAI's shape: `{"error": {"message", "type", "param", "code"}}`, with the right status."""

from __future__ import annotations

import errno
import http
import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from stereorl.errors import EngineTimeout, NotFoundError, RequestError, StoreError

log = logging.getLogger("stereorl.serve")

_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


def problem(
    status: int,
    message: str,
    *,
    code: str | None = None,
    param: str | None = None,
    headers: Mapping[str, str] | None = None,
) -> JSONResponse:
    """An error response."""
    return JSONResponse(body(status, message, code=code, param=param), status_code=status, headers=headers)


def body(status: int, message: str, *, code: str | None = None, param: str | None = None) -> dict[str, Any]:
    kind = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}.get(
        status, "server_error" if status >= 500 else "invalid_request_error"
    )
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def describe(error: BaseException) -> tuple[int, dict[str, Any]]:
    """Status and body for `error`; the details of an unforeseen one stay in the log."""
    if isinstance(error, RequestError):
        return error.status, body(error.status, str(error), code=error.code, param=error.param)
    if isinstance(error, NotFoundError):
        return 404, body(404, str(error), code="not_found")
    if isinstance(error, StoreError):
        full = disk_full(error)
        status, code = (507, "insufficient_storage") if full else (500, "store_error")
        reason = "the disk is full" if full else "the store failed"
        return status, body(
            status, f"The turn could not be recorded: {reason}. Nothing was acknowledged.", code=code
        )
    if isinstance(error, (EngineTimeout, TimeoutError)):
        return 500, body(500, f"The reply took too long: {error}", code="engine_timeout")
    return 500, body(500, "The server failed; its log says why.", code="internal_error")


def render(error: BaseException) -> JSONResponse:
    """The response for `error`, logged: refusals briefly, failures with their trace."""
    status, content = describe(error)
    if status >= 500:
        log.error("Answered %d: %s", status, error, exc_info=error)
    else:
        log.info("Refused with %d: %r", status, str(error))  # quoted: it may hold the client's line breaks
    headers = {"Retry-After": "1"} if status == 429 else {"Connection": "close"} if status == 413 else None
    return JSONResponse(content, status_code=status, headers=headers)


def disk_full(error: BaseException) -> bool:
    """True when a full disk is among the causes of `error`."""
    return any(
        getattr(cause, "errno", None) in _FULL or "disk is full" in str(cause).lower()
        for cause in _causes(error)
    )


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = getattr(error, "orig", None) or error.__cause__ or error.__context__


def invalid(errors: Sequence[Mapping[str, Any]]) -> RequestError:
    """The first of pydantic's `errors` as a refusal that names the field."""
    first = errors[0]
    if first["type"] == "json_invalid":
        return RequestError(
            f"The body is not valid JSON: {first['msg'].removeprefix('Invalid JSON: ')}.", code="invalid_json"
        )
    param = _param(first["loc"])
    hint = " One reply per request is all this server gives." if param == "n" else ""
    where = f"'{param}': " if param else ""
    more = f" ({len(errors) - 1} more)" if len(errors) > 1 else ""
    return RequestError(f"{where}{first['msg']}.{more}{hint}", code="invalid_value", param=param)


def _param(loc: Sequence[int | str]) -> str | None:
    """`("messages", 0, "user", "content", "text")` -> `messages[0].content`: branches of unions are no fields."""
    keys = [*loc]
    if len(keys) > 2 and keys[0] == "messages" and isinstance(keys[1], int):
        del keys[2]
    name = ""
    for i, key in enumerate(keys):
        if isinstance(key, int):
            name += f"[{key}]"
        elif (
            i == 0
            or key not in ("parts", "text", "one", "many")
            or (key == "text" and isinstance(keys[i - 1], int))
        ):
            name += f".{key}" if name else key
    return name or None


def install(app: FastAPI) -> None:
    """Every way out of `app` that is an error."""

    async def _render(_: Request, error: Exception) -> JSONResponse:
        return render(error)

    async def _http(_: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, HTTPException)
        known = {404: "No such path.", 405: "This path does not take that method."}
        message = known.get(error.status_code, str(error.detail) or http.HTTPStatus(error.status_code).phrase)
        return problem(error.status_code, message, code=_CODES.get(error.status_code), headers=error.headers)

    async def _validation(_: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, RequestValidationError)
        first = dict(error.errors()[0])
        return render(
            RequestError(
                f"'{first['loc'][-1]}': {first['msg']}.", code="invalid_value", param=str(first["loc"][-1])
            )
        )

    app.add_exception_handler(HTTPException, _http)
    app.add_exception_handler(RequestValidationError, _validation)
    for kind in (RequestError, NotFoundError, StoreError, Exception):
        app.add_exception_handler(kind, _render)


_CODES = {404: "not_found", 405: "method_not_allowed"}
