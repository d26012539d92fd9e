"""The one seam between the system and whatever generates text."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

import numpy as np
import numpy.typing as npt

from stereorl.data.turn import FloatArray, Sampling


@dataclass(frozen=True, slots=True)
class GenerateRequest:
    """`prompt_ids` are sampled from as they are; `sampling.stop` (strings) is the caller's business."""

    request_id: str
    prompt_ids: tuple[int, ...]
    sampling: Sampling


@dataclass(frozen=True, slots=True)
class Token:
    """One sampled token. `log_prob` is untruncated, at `sampling.score_temperature`; `version` sampled it.

    `finish_reason` is set on the last token only: "stop" when the token is an end token, else "length".
    """

    token_id: int
    log_prob: float
    version: int
    finish_reason: Literal["stop", "length"] | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Scores:
    """Per response token: `log_probs` float32 [R] and, when asked, the K best `top_ids`, `top_log_probs`."""

    log_probs: FloatArray
    top_ids: npt.NDArray[np.int32] | None = None
    top_log_probs: FloatArray | None = None


class Engine(Protocol):
    """Generates and scores under one policy whose weights can be swapped between two tokens.

    Closing the iterator of `generate` early (`aclose`) cancels the request. Raises ContextLengthError,
    EngineError.
    """

    @property
    def version(self) -> int:
        """The version that samples the next token; 0 is the base."""
        ...

    @property
    def load(self) -> int:
        """Requests running or waiting."""
        ...

    def generate(self, request: GenerateRequest) -> AsyncIterator[Token]: ...

    async def score(
        self,
        prompt_ids: tuple[int, ...],
        response_ids: tuple[int, ...],
        *,
        temperature: float,
        top_k: int = 0,
    ) -> Scores: ...

    async def use_version(self, version: int, path: Path | None) -> None:
        """Serve the weights in folder `path` (None: the base) as `version`, from the next token on."""
        ...

    async def close(self) -> None: ...
