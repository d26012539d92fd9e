"""Judges the served policy from outside: the first reply to held-out prompts, asked over HTTP as side turns.

Side turns never train, so asking does not teach. What a style rule cannot see (is the reply still on topic, does the
model still know what it knew) is measured by likelihoods, in `stereorl.study.likelihood`.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from zlib import crc32

from stereorl.study.personas import Persona
from stereorl.study.stats import wilson
from stereorl.study.user import Asking, Reply, ask

if TYPE_CHECKING:
    from openai import OpenAI


@dataclass(frozen=True)
class Evaluation:
    """First replies to held-out prompts at one version, with likelihoods once they are measured (nats per token)."""

    version: int
    replies: tuple[Reply, ...]
    relevance: float | None = None
    retention: float | None = None

    @property
    def kept(self) -> int:
        return sum(reply.kept for reply in self.replies)

    @property
    def pass_rate(self) -> float:
        return self.kept / len(self.replies)

    @property
    def interval(self) -> tuple[float, float]:
        """Wilson's 95 % interval of the pass rate."""
        return wilson(self.kept, len(self.replies))

    @property
    def words(self) -> float:
        return sum(reply.words for reply in self.replies) / len(self.replies)

    @property
    def ended(self) -> float:
        return sum(reply.ended for reply in self.replies) / len(self.replies)

    def as_dict(self) -> dict[str, Any]:
        """For the record: the figures, without the replies."""
        return {
            "version": self.version,
            "pass_rate": round(self.pass_rate, 4),
            "interval": [round(bound, 4) for bound in self.interval],
            "n": len(self.replies),
            "words": round(self.words, 2),
            "ended": round(self.ended, 4),
            "relevance": self.relevance if self.relevance is None else round(self.relevance, 4),
            "retention": self.retention if self.retention is None else round(self.retention, 4),
        }


def first_replies(
    client: OpenAI,
    persona: Persona,
    prompts: Sequence[str],
    asking: Asking,
    *,
    seed: int,
    concurrent: int = 8,
) -> tuple[Reply, ...]:
    """The reply to each prompt, in a session of its own, as a side turn. A prompt has the same seed at each call."""

    def one(prompt: str) -> Reply:
        return ask(
            client,
            [{"role": "user", "content": prompt}],
            persona,
            asking,
            seed=crc32(f"{seed}/{prompt}".encode()),
            headers={"X-Turn-Type": "side"},
        )

    with ThreadPoolExecutor(concurrent, thread_name_prefix="evaluate") as pool:
        return tuple(pool.map(one, prompts))
