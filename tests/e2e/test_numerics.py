"""Invariant 2 along the whole path: what plain and streamed clients were served is what the trainer computes."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import torch

from stereorl.config import Config, EngineConfig, LearnConfig
from stereorl.data import Message, Sample, Turn
from stereorl.learn.batch import collate
from stereorl.learn.step import Trainer
from stereorl.policy.adapters import attach
from stereorl.policy.engine import Scores
from stereorl.policy.torch_engine import TorchEngine
from stereorl.serve.app import create_app
from stereorl.signals.teacher import BaseTeacher
from stereorl.store.store import Store
from stereorl.store.versions import Versions

pytestmark = [pytest.mark.model, pytest.mark.timeout(400)]
TOLERANCE = 1e-4
QUESTIONS = ["What is a lake?", "Say hello.", "Name two colours, please.", "你好！"]


@pytest.mark.parametrize("prefix_cache", [True, False])
def test_with_lr_0_stored_and_trained_log_probs_agree(
    loaded: Any, fresh_loaded: Any, tmp_path: Path, prefix_cache: bool
) -> None:
    store = Store.open(f"sqlite:///{tmp_path / 'stereorl.db'}")
    turns = asyncio.run(_serve(loaded, store, tmp_path, prefix_cache))
    assert len(turns) == 8
    model = attach(fresh_loaded, kind="lora")
    trainer = Trainer(model, LearnConfig(lr=0.0))
    weights = {name: param.detach().clone() for name, param in model.named_parameters()}
    for size in (1, 3, 8):
        for at in range(0, len(turns), size):
            samples = [Sample(turn=turn, reward=1.0) for turn in turns[at : at + size]]
            batch = collate(samples)
            logp_BT = trainer.all_log_probs(batch)
            off = (logp_BT - batch.logp_behaviour_BT)[batch.mask_BT].abs().max()
            assert off <= TOLERANCE, f"batch size {size}: {off}"
    update = trainer.step([Sample(turn=turn, reward=1.0) for turn in turns])
    assert update.metrics["ratio_mean"] == 1.0
    assert abs(update.metrics["importance_max"] - 1) <= TOLERANCE
    assert all(torch.equal(param, weights[name]) for name, param in model.named_parameters())
    store.close()


def test_without_a_hint_the_gap_is_zero(
    loaded: Any, fresh_loaded: Any, renderer: Any, tmp_path: Path
) -> None:
    store = Store.open(f"sqlite:///{tmp_path / 'stereorl.db'}")
    turns = asyncio.run(_serve(loaded, store, tmp_path, True))
    model = attach(fresh_loaded, kind="lora")
    teacher = BaseTeacher(model, renderer, label="[hint]")
    for turn, scored in zip(turns, teacher.score([(turn, "") for turn in turns]), strict=True):
        assert isinstance(scored, Scores)
        assert np.abs(scored.log_probs - turn.log_probs).max() <= TOLERANCE
    store.close()


async def _serve(loaded: Any, store: Store, home: Path, prefix_cache: bool) -> list[Turn]:
    """Four sessions of two turns at once over HTTP, half of them streamed; every turn as stored."""
    engine = TorchEngine(loaded, EngineConfig(cache_tokens=4096, prefix_cache=prefix_cache))
    app = create_app(
        Config(home=home),
        engine=engine,
        store=store,
        versions=Versions(home / "versions"),
        renderer=engine.renderer,
        model_name="m",
    )
    transport = httpx.ASGITransport(app)
    async with app.router.lifespan_context(app):
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1", timeout=120) as client:
            ids = await asyncio.gather(*(_session(client, n, q) for n, q in enumerate(QUESTIONS)))
    assert (engine.prefix_hit_tokens > 0) == prefix_cache
    await engine.close()
    return [store.turn(turn_id) for pair in ids for turn_id in pair]


async def _session(client: httpx.AsyncClient, number: int, question: str) -> tuple[str, str]:
    talk = [Message("user", question).as_dict()]
    first, text = await _ask(client, talk, stream=number % 2 == 0)
    talk += [
        Message("assistant", text).as_dict(),
        Message("user", "Too long. Please use one sentence.").as_dict(),
    ]
    second, _ = await _ask(client, talk, stream=number % 2 == 1)
    return first, second


async def _ask(client: httpx.AsyncClient, talk: list[dict[str, Any]], *, stream: bool) -> tuple[str, str]:
    body = {"model": "m", "messages": talk, "max_tokens": 20, "temperature": 0.6, "stream": stream}
    response = await client.post("/v1/chat/completions", json=body)
    assert response.status_code == 200, response.text
    turn_id = response.headers["x-turn-id"]
    if not stream:
        return turn_id, response.json()["choices"][0]["message"]["content"]
    chunks = [json.loads(line[6:]) for line in response.text.splitlines() if line.startswith("data: {")]
    return turn_id, "".join(
        choice["delta"].get("content") or "" for chunk in chunks for choice in chunk["choices"]
    )
