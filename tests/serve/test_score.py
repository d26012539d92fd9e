"""POST /v1/score over a scripted engine: what it answers, what it refuses, that scores do not crowd out replies."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest

from stereorl.policy.engine import Scores
from tests.serve.setting import Setup, say, user

pytestmark = pytest.mark.anyio

ASK = {"prompt_ids": [5, 6, 7], "response_ids": [8, 9], "temperature": 0.5, "top_k": 3}


async def test_scores_and_the_likeliest_ids(setup: Setup) -> None:
    async with setup.client() as client:
        setup.engine.version = 4
        answer = (await client.post("/v1/score", json=ASK)).json()
        plain = (await client.post("/v1/score", json={**ASK, "top_k": 0})).json()
    assert answer == {
        "log_probs": [-1.0, -1.0],
        "top_ids": [[0, 1, 2]] * 2,
        "top_log_probs": [[-1.0] * 3] * 2,
        "policy_version": 4,
    }
    assert plain == {**answer, "top_ids": None, "top_log_probs": None}
    assert setup.store.funnel().captured == 0  # nothing is recorded


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"prompt_ids": []}, "prompt_ids"),
        ({"response_ids": []}, "response_ids"),
        ({"response_ids": [-1]}, "response_ids[0]"),
        ({"response_ids": [2**31]}, "response_ids[0]"),
        ({"response_ids": ["8"]}, "response_ids[0]"),
        ({"response_ids": [True]}, "response_ids[0]"),
        ({"temperature": 0}, "temperature"),
        ({"temperature": 1e-9}, "temperature"),
        ({"top_k": 101}, "top_k"),
        ({"top_k": -1}, "top_k"),
    ],
)
async def test_what_cannot_be_scored_names_its_field(
    setup: Setup, change: dict[str, Any], param: str
) -> None:
    async with setup.client() as client:
        response = await client.post("/v1/score", json={**ASK, **change})
    assert response.status_code == 400
    assert response.json()["error"]["param"] == param


async def test_too_long_a_context_and_too_large_a_body(setup: Setup) -> None:
    setup.renderer.context_length = 4
    setup.overrides["serve.max_body_mb"] = 0.001
    async with setup.client() as client:
        long = await client.post("/v1/score", json=ASK)
        large = await client.post("/v1/score", json={**ASK, "prompt_ids": [1] * 1000})
    assert (long.status_code, long.json()["error"]["code"]) == (400, "context_length_exceeded")
    assert long.json()["error"]["message"] == "5 ids exceed the model's context of 4 tokens."
    assert large.status_code == 413


async def test_it_wants_the_key(setup: Setup, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STEREORL_API_KEY", "s3cret")
    async with setup.client() as client:
        assert (await client.post("/v1/score", json=ASK)).status_code == 401
        answer = await client.post("/v1/score", json=ASK, headers={"Authorization": "Bearer s3cret"})
        assert answer.status_code == 200


async def test_a_log_prob_that_is_no_number_is_an_error_not_an_answer(setup: Setup) -> None:
    setup.engine.log_prob = float("nan")
    async with setup.client() as client:
        assert (await client.post("/v1/score", json=ASK)).status_code == 500


async def test_scores_wait_for_each_other_and_replies_do_not_wait_for_them(
    setup: Setup, monkeypatch: pytest.MonkeyPatch
) -> None:
    release, running = asyncio.Event(), []

    async def held(*_: Any, **__: Any) -> Scores:
        running.append(1)
        await release.wait()
        return Scores(np.array([-1.0, -1.0], np.float32))

    monkeypatch.setattr(setup.engine, "score", held)
    setup.overrides["engine.max_queue"] = 3
    async with setup.client() as client:
        asked = [asyncio.create_task(client.post("/v1/score", json=ASK)) for _ in range(3)]
        while not running:
            await asyncio.sleep(0.01)
        assert (await say(client, [user("hi")])).status_code == 200
        assert (await client.post("/v1/score", json=ASK)).status_code == 429
        assert len(running) == 1
        release.set()
        assert [(await one).status_code for one in asked] == [200] * 3


async def test_scores_carry_the_version_that_made_them(setup: Setup, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    async def swapped(*_: Any, **__: Any) -> Scores:
        calls.append(setup.engine.version)
        setup.engine.version = 2  # a swap while the first score waits
        return Scores(np.array([-1.0, -1.0], np.float32))

    monkeypatch.setattr(setup.engine, "score", swapped)
    async with setup.client() as client:
        answer = (await client.post("/v1/score", json=ASK)).json()
    assert (answer["policy_version"], calls) == (2, [0, 2])
