"""The seam to a chat model: messages in, text out. The real one speaks the OpenAI chat API over HTTP."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from typing import Any, Protocol
from urllib.parse import urlsplit

import httpx

from stereorl.config import JudgeEndpointConfig
from stereorl.data import Message
from stereorl.errors import ConfigError, JudgeError

MAX_BYTES = 4_000_000
_LOOPBACK = ("127.0.0.1", "localhost", "::1")


class Chat(Protocol):
    """A chat model; safe to call from several threads at once."""

    def complete(self, messages: Sequence[Message]) -> str:
        """One answer. Raises JudgeError when there is none; the message says why."""
        ...


class HttpChat:
    """`POST <url>/chat/completions` of any OpenAI-compatible endpoint. The key comes from the environment.

    Every wait ends after `timeout_s`, however slowly an answer drips. No retries: the collector asks again.
    """

    def __init__(self, config: JudgeEndpointConfig):
        assert config.url, "the configuration asks for a URL"
        self._url = config.url.rstrip("/") + "/chat/completions"
        self._config = config
        headers = key_header(config.api_key_env)
        nearby = urlsplit(config.url).hostname in _LOOPBACK  # which no proxy of the environment can reach
        self._client = httpx.Client(headers=headers, timeout=config.timeout_s, trust_env=not nearby)

    def complete(self, messages: Sequence[Message]) -> str:
        body = {
            "model": self._config.model,
            "messages": [message.as_dict() for message in messages],
            "temperature": self._config.temperature,
            "max_tokens": self._config.max_tokens,
        }
        try:
            status, data = self._send(body)
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            what = str(error) or type(error).__name__
            raise JudgeError(f"The judge at {self._url} cannot be reached: {what}.") from error
        if status != httpx.codes.OK:
            said = " ".join(data[:300].decode("utf-8", "replace").split())
            raise JudgeError(f"The judge at {self._url} refuses with {status}: {said}")
        try:
            return _text(json.loads(data))
        except (ValueError, RecursionError, TypeError, KeyError, IndexError) as error:
            raise JudgeError(f"The judge at {self._url} did not answer as a chat model does.") from error

    def close(self) -> None:
        self._client.close()

    def _send(self, body: dict[str, Any]) -> tuple[int, bytes]:
        """(status, answer), all of it within `timeout_s` and `MAX_BYTES`."""
        end = time.monotonic() + self._config.timeout_s
        pieces, size = [], 0
        text = json.dumps(body).encode("utf-8")  # ASCII: a lone surrogate of the conversation goes escaped
        headers = {"content-type": "application/json"}
        with self._client.stream("POST", self._url, content=text, headers=headers) as response:
            for piece in response.iter_bytes():
                pieces.append(piece)
                size += len(piece)
                if size > MAX_BYTES:
                    raise httpx.ReadError(f"an answer of more than {MAX_BYTES} bytes")
                if time.monotonic() > end:
                    raise httpx.ReadTimeout(f"no whole answer within {self._config.timeout_s:g} s")
        return response.status_code, b"".join(pieces)


def key_header(variable: str) -> dict[str, str]:
    """What sends the key in an environment variable, if there is one. ConfigError when no header can hold it."""
    key = os.environ.get(variable, "").strip()
    if not (key.isascii() and key.isprintable()):
        raise ConfigError(f"The key in ${variable} holds characters that no header can.")
    return {"Authorization": f"Bearer {key}"} if key else {}


def _text(answer: Any) -> str:
    content = answer["choices"][0]["message"]["content"]
    if not isinstance(content, str):
        raise TypeError("no text")
    return content
