"""How a remote teacher is asked and understood: pure functions of what is sent and what comes back.

`body` builds a request, `parse` reads the answer and refuses what cannot be log-probs of what was asked (ValueError,
or whatever a wrong shape raises: the caller turns it into a TeacherError).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from stereorl.policy.engine import Scores

TEACHER_TEMPERATURE = "teacher_temperature"  # a reason: the endpoint scores at another temperature only
_SLACK = 1e-3  # how far above 0 rounding may carry a log-prob, and a sum of probabilities above 1


@dataclass(frozen=True, slots=True)
class Ask:
    """What is to be scored. `top_k` at most `vocabulary`."""

    prompt_ids: list[int]
    response_ids: list[int]
    temperature: float
    top_k: int
    vocabulary: int


class Dialect(Protocol):
    """One kind of endpoint."""

    path: str

    def refuses(self, ask: Ask) -> str | None:
        """The reason why this kind of endpoint can never score it, if there is one."""
        ...

    def body(self, ask: Ask) -> dict[str, Any]: ...

    def parse(self, answer: Any, ask: Ask) -> Scores: ...


class StereoDialect:
    """`POST /v1/score` of a StereoRL server."""

    path = "/score"

    def __init__(self, model: str = "default"):
        """A StereoRL server serves one model; its name is not asked for."""

    def refuses(self, ask: Ask) -> str | None:
        return None

    def body(self, ask: Ask) -> dict[str, Any]:
        return {
            "prompt_ids": ask.prompt_ids,
            "response_ids": ask.response_ids,
            "temperature": ask.temperature,
            "top_k": ask.top_k,
        }

    def parse(self, answer: Any, ask: Ask) -> Scores:
        if not ask.top_k:
            return checked(answer["log_probs"], None, None, ask)
        return checked(answer["log_probs"], answer["top_ids"], answer["top_log_probs"], ask)


class VllmDialect:
    """vLLM's `/v1/completions` with `prompt_logprobs`: log-probs of a prompt's own tokens, at temperature 1.

    The reply is the end of the prompt; one token has to be generated and is not looked at.
    """

    path = "/completions"

    def __init__(self, model: str = "default"):
        self._model = model

    def refuses(self, ask: Ask) -> str | None:
        return None if ask.temperature == 1 else TEACHER_TEMPERATURE

    def body(self, ask: Ask) -> dict[str, Any]:
        return {
            "model": self._model,
            "prompt": [*ask.prompt_ids, *ask.response_ids],
            "max_tokens": 1,
            "temperature": 1,
            "prompt_logprobs": max(ask.top_k, 1),
        }

    def parse(self, answer: Any, ask: Ask) -> Scores:
        """Each position of the prompt but the first (null) has {id: {"logprob": ...}}: the likeliest and its own."""
        tables = answer["choices"][0]["prompt_logprobs"]
        total = len(ask.prompt_ids) + len(ask.response_ids)
        if len(tables) != total:
            raise ValueError(f"prompt_logprobs has {len(tables)} entries for {total} ids")
        rows = [_row(table) for table in tables[len(ask.prompt_ids) :]]
        own = [row[token] for row, token in zip(rows, ask.response_ids, strict=True)]
        if not ask.top_k:
            return checked(own, None, None, ask)
        best = [sorted(row.items(), key=lambda item: -item[1])[: ask.top_k] for row in rows]
        return checked(own, [[k for k, _ in row] for row in best], [[v for _, v in row] for row in best], ask)


DIALECTS: dict[str, type[StereoDialect] | type[VllmDialect]] = {
    "stereorl": StereoDialect,
    "vllm": VllmDialect,
}


def checked(log_probs: Sequence[Any], top_ids: Any, top_log_probs: Any, ask: Ask) -> Scores:
    """As arrays. ValueError: not one finite log-prob a token, or not K ids a token with theirs, best first."""
    shape = (len(ask.response_ids),)
    own_R = _log_probs("log_probs", log_probs, shape)
    if not ask.top_k:
        return Scores(own_R)
    ids_RK = np.asarray(top_ids)
    top_RK = _log_probs("top_log_probs", top_log_probs, (*shape, ask.top_k))
    if ids_RK.shape != top_RK.shape or ids_RK.dtype.kind not in "iu":
        raise ValueError(f"top_ids are {ids_RK.shape} of {ids_RK.dtype}, not {top_RK.shape} ids")
    if ids_RK.min() < 0 or ids_RK.max() >= ask.vocabulary:
        raise ValueError(f"top_ids hold ids outside the vocabulary of {ask.vocabulary}")
    if (np.diff(np.sort(ids_RK, axis=1), axis=1) == 0).any():
        raise ValueError("top_ids repeat an id at one token")
    if (np.diff(top_RK, axis=1) > _SLACK).any():
        raise ValueError("top_log_probs do not come best first")
    if (np.exp(top_RK.astype(np.float64)).sum(1) > 1 + 10 * _SLACK).any():
        raise ValueError("top_log_probs add up to more than probability 1")
    return Scores(own_R, ids_RK.astype(np.int32), top_RK)


def empty(ask: Ask) -> Scores:
    """The score of a reply without a token."""
    none_0K = np.zeros((0, ask.top_k))
    top = (none_0K.astype(np.int32), none_0K.astype(np.float32)) if ask.top_k else (None, None)
    return Scores(np.zeros(0, np.float32), *top)


def _log_probs(name: str, values: Any, shape: tuple[int, ...]) -> np.ndarray[Any, np.dtype[np.float32]]:
    """float32, none above 0. ValueError when they are anything else than finite log-probs in this shape."""
    array = np.asarray(values)
    if array.shape != shape or array.dtype.kind not in "iuf":
        raise ValueError(f"{name} are {array.shape} of {array.dtype}, not {shape} numbers")
    array = array.astype(np.float32)
    if not np.isfinite(array).all():
        raise ValueError(f"{name} are not all finite")
    if (array > _SLACK).any():
        raise ValueError(f"{name} reach {array.max():g}, but no log-prob is above 0")
    capped: np.ndarray[Any, np.dtype[np.float32]] = np.minimum(array, np.float32(0))
    return capped


def _row(table: Mapping[str, Mapping[str, float]]) -> dict[int, float]:
    return {int(token): float(entry["logprob"]) for token, entry in table.items()}
