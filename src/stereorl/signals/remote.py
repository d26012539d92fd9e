"""A teacher in another process: the hinted prompt's ids go out, log-probs of the reply's ids come back.

The prompt is rendered here, with the policy's own tokenizer, so the other side needs the same vocabulary and nothing
else. Two dialects: `/v1/score` of another StereoRL server, and the `prompt_logprobs` of vLLM's completions.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from typing import Any

import httpx

from stereorl.config import TeacherEndpointConfig
from stereorl.data import Turn
from stereorl.errors import TeacherError
from stereorl.policy.engine import Scores
from stereorl.policy.render import Renderer
from stereorl.signals.chat import key_header
from stereorl.signals.dialects import DIALECTS, Ask, Dialect, empty
from stereorl.signals.teacher import HINT_OVER_CONTEXT, hinted_prompt

_TOO_LONG = ("context_length", "maximum context length", "max_model_len")


class RemoteTeacher:
    """Implements `signals.teacher.Teacher` over HTTP. `vocabulary`: how many ids the policy has.

    Every wait ends after `timeout_s`. TeacherError, in `score`: the endpoint cannot be reached, refuses, or answers
    nonsense; the message names it and says why.
    """

    name = "remote"
    moves = False

    def __init__(self, config: TeacherEndpointConfig, renderer: Renderer, label: str, *, vocabulary: int):
        assert config.url, "the configuration asks for a URL"
        self._url = config.url.rstrip("/")
        self._timeout_s = config.timeout_s
        self._renderer = renderer
        self._label = label
        self._vocabulary = vocabulary
        self._dialect: Dialect = DIALECTS[config.api](config.model)
        headers = key_header(config.api_key_env)
        self._client = httpx.Client(headers=headers, timeout=config.timeout_s, trust_env=False)

    def score(self, turns_and_hints: Sequence[tuple[Turn, str]], *, top_k: int = 0) -> list[Scores | str]:
        """One request an item, one after the other."""
        return [self._one(turn, hint, top_k) for turn, hint in turns_and_hints]

    def follow(self) -> None:
        """What it is does not depend on our steps."""

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Nothing to take up."""

    def close(self) -> None:
        self._client.close()

    def _one(self, turn: Turn, hint: str, top_k: int) -> Scores | str:
        prompt = hinted_prompt(self._renderer, turn, hint, self._label)
        if prompt is None:
            return HINT_OVER_CONTEXT
        ask = Ask(
            prompt_ids=[int(i) for i in prompt],
            response_ids=turn.response_ids.tolist(),
            temperature=turn.sampling.score_temperature,
            top_k=min(top_k, self._vocabulary),
            vocabulary=self._vocabulary,
        )
        reason = self._dialect.refuses(ask)
        if reason is not None:
            return reason
        if not ask.response_ids:
            return empty(ask)
        answer = self._post(self._dialect.path, self._dialect.body(ask), _most_bytes(ask))
        if isinstance(answer, str):
            return answer
        try:
            return self._dialect.parse(answer, ask)
        except (ValueError, TypeError, LookupError, OverflowError, AttributeError) as error:
            raise TeacherError(f"The teacher at {self._url} answered nonsense: {_short(error)}.") from error

    def _post(self, path: str, body: Mapping[str, Any], most: int) -> Any:
        """The answer's JSON, of at most `most` bytes, or the reason why this item gets none."""
        try:
            status, data = self._send(f"{self._url}{path}", body, most)
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            what = str(error) or type(error).__name__
            raise TeacherError(f"The teacher at {self._url} cannot be reached: {what}.") from error
        if status == httpx.codes.REQUEST_ENTITY_TOO_LARGE or (status == 400 and _too_long(data)):
            return HINT_OVER_CONTEXT
        if status != httpx.codes.OK:
            said = data.decode("utf-8", "replace")[:300]
            raise TeacherError(f"The teacher at {self._url} refuses with {status}: {said}")
        try:
            return json.loads(data)
        except (ValueError, RecursionError) as error:
            raise TeacherError(f"The teacher at {self._url} did not answer in JSON.") from error

    def _send(self, url: str, body: Mapping[str, Any], most: int) -> tuple[int, bytes]:
        """(status, body), all of it within `timeout_s`, however slowly it drips."""
        end = time.monotonic() + self._timeout_s
        pieces, size = [], 0
        with self._client.stream("POST", url, json=body) as response:
            for piece in response.iter_bytes():
                pieces.append(piece)
                size += len(piece)
                if size > most:
                    raise httpx.ReadError(f"an answer of more than {most} bytes")
                if time.monotonic() > end:
                    raise httpx.ReadTimeout(f"no whole answer within {self._timeout_s:g} s")
        return response.status_code, b"".join(pieces)


def _most_bytes(ask: Ask) -> int:
    """Far more than either dialect needs for its tables."""
    return 1_000_000 + 500 * (len(ask.prompt_ids) + len(ask.response_ids)) * (ask.top_k + 2)


def _too_long(data: bytes) -> bool:
    text = data[:4000].decode("utf-8", "replace")
    return any(mark in text for mark in _TOO_LONG)


def _short(error: Exception) -> str:
    text = str(error).rstrip(".")
    return f"no {text}" if isinstance(error, KeyError) else text[:300] or type(error).__name__
