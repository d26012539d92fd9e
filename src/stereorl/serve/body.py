"""Reading a JSON body: its type, its size and its shape are checked, in that order."""

from __future__ import annotations

from typing import TypeVar

from fastapi import Request
from pydantic import BaseModel, ValidationError
from starlette.requests import ClientDisconnect

from stereorl.errors import RequestError
from stereorl.serve.problems import invalid

T = TypeVar("T", bound=BaseModel)


async def read(request: Request, shape: type[T], *, max_bytes: int) -> T:
    """The body as `shape`; RequestError 415, 413 or 400 names what is wrong.

    Only `application/json` is taken: a web page can send other types to a local server without being asked.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise RequestError(
            f"Send the body as 'Content-Type: application/json', not '{kind[:60] or 'nothing'}'.",
            status=415,
            code="unsupported_media_type",
        )
    data = await _bytes(request, max_bytes)
    try:
        data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise RequestError(
            f"The body is not valid UTF-8 (byte {error.start}).", code="invalid_json"
        ) from None
    try:
        return shape.model_validate_json(data.removeprefix(b"\xef\xbb\xbf"))
    except ValidationError as error:
        raise invalid(error.errors(include_url=False, include_input=False, include_context=False)) from None


async def _bytes(request: Request, max_bytes: int) -> bytes:
    """The body, never held beyond `max_bytes`: a longer one is refused at its length or at the limit."""
    length = request.headers.get("content-length", "")
    if length.isascii() and length.isdigit() and int(length[:20]) > max_bytes:
        raise _too_large(max_bytes)
    pieces: list[bytes] = []
    size = 0
    try:
        async for piece in request.stream():
            size += len(piece)
            if size > max_bytes:
                raise _too_large(max_bytes)
            pieces.append(piece)
    except ClientDisconnect:
        raise RequestError("The client went before its whole body came.", code="incomplete_body") from None
    return b"".join(pieces)


def _too_large(max_bytes: int) -> RequestError:
    return RequestError(
        f"The body is larger than {max_bytes / 1e6:g} MB; serve.max_body_mb sets the limit.",
        status=413,
        code="request_too_large",
    )
