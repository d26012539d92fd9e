"""Invariant 2 on the real model: what the engine stores is what the trainer computes, on every path."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stereorl.config import EngineConfig
from stereorl.data import Message
from stereorl.data.turn import Sampling
from stereorl.policy import adapters
from stereorl.policy.engine import GenerateRequest, Token
from stereorl.policy.score import response_log_probs
from stereorl.policy.torch_engine import TorchEngine

pytestmark = pytest.mark.model
TOLERANCE = 1e-4
QUESTIONS = [
    "What is the sea?",
    "Name three fruits, please.",
    "Say hello.",
    "How do magnets work? Explain it to a child who has never seen one, in your own words.",
    "Write a line about rain.",
    "What is 7 times 8?",
    "你好，你是谁？",
    "Tell me a story.",
]
Reply = tuple[list[int], list[Token]]


async def reply(engine: TorchEngine, question: str, **sampling: Any) -> Reply:
    ids = engine.renderer.encode([Message("user", question)])
    request = GenerateRequest("r", tuple(ids), Sampling(**{"temperature": 0.7, "max_tokens": 16, **sampling}))
    return ids, [token async for token in engine.generate(request)]


def largest_gap(model: Any, replies: list[Reply], temperature: float) -> float:
    import torch

    with torch.no_grad():
        logp, _ = response_log_probs(
            model,
            [prompt for prompt, _ in replies],
            [[t.token_id for t in tokens] for _, tokens in replies],
            temperature=temperature,
        )
    return max(
        abs(t.log_prob - float(logp[i, j]))
        for i, (_, tokens) in enumerate(replies)
        for j, t in enumerate(tokens)
    )


@pytest.fixture
def trainer(fresh_loaded: Any) -> Any:
    """The learner's model before its first step: LoRA attached, contributing nothing."""
    return adapters.attach(fresh_loaded, kind="lora", r=16, alpha=32)


@pytest.mark.parametrize("prefix_cache", [True, False])
@pytest.mark.parametrize("requests", [1, 3, 8])
def test_stored_log_probs_are_the_trainers(
    loaded: Any, trainer: Any, requests: int, prefix_cache: bool
) -> None:
    async def body() -> None:
        engine = TorchEngine(loaded, EngineConfig(cache_tokens=4096, prefix_cache=prefix_cache))
        for temperature in (0.7, 1.0):
            asked = [reply(engine, question, temperature=temperature) for question in QUESTIONS[:requests]]
            assert largest_gap(trainer, await asyncio.gather(*asked), temperature) <= TOLERANCE
        assert (engine.prefix_hit_tokens > 0) == prefix_cache
        await engine.close()

    asyncio.run(body())


def test_a_merged_adapter_serves_what_the_unmerged_one_trains(
    loaded: Any, fresh_loaded: Any, tmp_path: Path, save_adapter: Callable[..., Path]
) -> None:
    path = save_adapter(fresh_loaded, tmp_path / "v1", size=0.02)
    base = loaded.model

    async def body() -> None:
        engine = TorchEngine(loaded, EngineConfig(cache_tokens=4096))
        before = await reply(engine, QUESTIONS[0], temperature=0)
        await engine.use_version(1, path)
        replies = await asyncio.gather(*[reply(engine, q) for q in QUESTIONS[:3]])
        assert {t.version for _, tokens in replies for t in tokens} == {1}
        assert largest_gap(fresh_loaded.model, replies, 0.7) <= TOLERANCE
        assert largest_gap(base, replies, 0.7) > 100 * TOLERANCE
        await engine.use_version(0, None)
        after = await reply(engine, QUESTIONS[0], temperature=0)
        assert [t.token_id for t in after[1]] == [t.token_id for t in before[1]]
        assert largest_gap(base, [after], 1.0) <= TOLERANCE
        await engine.close()

    asyncio.run(body())


def test_a_long_prompt_prefilled_in_pieces(engine: TorchEngine, trainer: Any) -> None:
    async def body() -> None:
        long = " ".join(f"Item {i} costs {i * 7 % 13} coins." for i in range(75))
        long_reply, short_reply = await asyncio.gather(reply(engine, long), reply(engine, "Hi"))
        assert len(long_reply[0]) > 512
        assert largest_gap(trainer, [long_reply], 0.7) <= TOLERANCE
        assert largest_gap(trainer, [short_reply], 0.7) <= TOLERANCE

    asyncio.run(body())


def test_the_engines_score_is_the_trainers(engine: TorchEngine, trainer: Any) -> None:
    async def body() -> None:
        prompt, tokens = await reply(engine, QUESTIONS[3], seed=1)
        ids = tuple(t.token_id for t in tokens)
        scores = await engine.score(tuple(prompt), ids, temperature=0.7, top_k=4)
        assert max(abs(scores.log_probs - [t.log_prob for t in tokens])) <= TOLERANCE
        assert scores.top_ids is not None
        assert scores.top_ids.shape == (len(ids), 4)

    asyncio.run(body())
