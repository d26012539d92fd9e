"""Feedback, models, health, metrics, and what goes on beside the requests."""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from stereorl.errors import StoreError
from stereorl.store.versions import Manifest
from tests.serve.setting import Setup, assistant, say, user
from tests.serve.test_refusals import refusal

pytestmark = pytest.mark.anyio


async def until(condition: Callable[[], Any], what: str, seconds: float = 5) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"waited in vain for {what}"
        await asyncio.sleep(0.02)


# --- feedback ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("prefix", ["", "chatcmpl-"])
async def test_feedback_is_recorded(setup: Setup, prefix: str) -> None:
    async with setup.client() as client:
        turn_id = (await say(client, [user("Hi")])).headers["x-turn-id"]
        body = {"turn_id": prefix + turn_id, "score": -1, "correction": "Be brief."}
        response = await client.post("/v1/feedback", json=body)
    assert response.status_code == 200
    assert response.json()["turn_id"] == turn_id
    (feedback,) = setup.store.detail(turn_id).feedback
    assert (feedback.score, feedback.correction) == (-1, "Be brief.")
    assert [item.turn.turn_id for item in setup.store.judge_queue()] == [turn_id]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, None),
        ({"score": None, "correction": None}, None),
        ({"correction": "  \n"}, "correction"),
        ({"correction": "x" * 20_001}, "correction"),
        ({"score": 2}, "score"),
        ({"score": 0.5}, "score"),
        ({"score": "1"}, "score"),
        ({"score": True}, "score"),
        ({"turn_id": "", "score": 1}, "turn_id"),
        ({"turn_id": 7, "score": 1}, "turn_id"),
    ],
)
async def test_feedback_that_says_nothing(setup: Setup, body: dict[str, Any], param: str | None) -> None:
    async with setup.client() as client:
        turn_id = (await say(client, [user("Hi")])).headers["x-turn-id"]
        refusal(await client.post("/v1/feedback", json={"turn_id": turn_id, **body}), 400, param=param)
    assert setup.store.detail(turn_id).feedback == ()


async def test_feedback_on_an_unknown_turn(setup: Setup) -> None:
    async with setup.client() as client:
        message = refusal(await client.post("/v1/feedback", json={"turn_id": "nope", "score": 0}), 404)
    assert "'nope'" in message


# --- a full disk -------------------------------------------------------------------------------------------------


async def test_a_full_disk_refuses_and_recovers(setup: Setup, monkeypatch: pytest.MonkeyPatch) -> None:
    put = setup.store.put
    full = True

    def sometimes(records: Any) -> None:
        if full:
            raise StoreError(
                "The disk that holds s.db is full, so nothing was written. [database or disk is full]"
            )
        put(records)

    monkeypatch.setattr(setup.store, "put", sometimes)
    async with setup.client() as client:
        refused = await say(client, [user("Hi")])
        stream = await say(client, [user("Hi")], stream=True)
        full = False
        first = await say(client, [user("Hi")])
        full = True
        talk = [user("Hi"), assistant("Hello there!"), user("No, shorter")]
        assert (await say(client, talk)).status_code == 507
        feedback = {"turn_id": first.headers["x-turn-id"], "score": 1}
        refusal(await client.post("/v1/feedback", json=feedback), 507)
        full = False
        assert (await say(client, talk)).status_code == 200
        assert (await client.post("/v1/feedback", json=feedback)).status_code == 200
    assert "disk is full" in refusal(refused, 507, code="insufficient_storage")
    assert '"insufficient_storage"' in stream.text
    assert "[DONE]" not in stream.text
    assert len(setup.turns()) == 2
    (state,) = setup.store.detail(first.headers["x-turn-id"]).next_states
    assert state.messages[0].content == "No, shorter"


async def test_a_next_state_that_failed_to_commit_is_tried_again(
    setup: Setup, monkeypatch: pytest.MonkeyPatch
) -> None:
    put = setup.store.put
    failing = 0

    def sometimes(records: Any) -> None:
        nonlocal failing
        if failing:
            failing -= 1
            raise StoreError("s.db is locked")
        put(records)

    monkeypatch.setattr(setup.store, "put", sometimes)
    async with setup.client() as client:
        first = await say(client, [user("Hi")])
        failing = 1
        setup.engine.delay_s = 0.05
        second = await say(client, [user("Hi"), assistant("Hello there!"), user("No")])
    assert second.status_code == 200
    assert len(setup.store.next_states(first.headers["x-turn-id"])) == 1


# --- health and metrics ------------------------------------------------------------------------------------------


async def test_health(setup: Setup, monkeypatch: pytest.MonkeyPatch) -> None:
    async with setup.client() as client:
        alone = await client.get("/healthz")
        lock = setup.home / "run" / "learn.lock"
        lock.parent.mkdir(parents=True, exist_ok=True)
        lock.write_text(str(os.getpid()))
        learning = await client.get("/healthz")

        def broken() -> str:
            raise StoreError("s.db is damaged")

        monkeypatch.setattr(setup.store, "schema_version", broken)
        sick = await client.get("/healthz")
    assert alone.json() == {
        "status": "ok",
        "policy_version": 0,
        "model": "tiny",
        "store": "ok",
        "learner": "absent",
    }
    assert learning.json()["learner"] == "running"
    assert (sick.status_code, sick.json()["status"]) == (503, "degraded")


async def test_metrics(setup: Setup) -> None:
    async with setup.client() as client:
        await say(client, [user("Hi")])
        await say(client, [user("Hi"), assistant("Hello there!"), user("more")], stream=True)
        await say(client, [])
        await client.get("/nowhere")
        text = (await client.get("/metrics")).text
        setup.engine.version = 4
        again = (await client.get("/metrics")).text
    samples = {
        (s.name, tuple(sorted(s.labels.items()))): s.value
        for family in text_string_to_metric_families(text)
        for s in family.samples
    }

    def value(name: str, **labels: str) -> float:
        return samples[(f"stereorl_{name}", tuple(sorted(labels.items())))]

    assert value("requests_total", route="/v1/chat/completions", status="200") == 2
    assert value("requests_total", route="/v1/chat/completions", status="400") == 1
    assert value("requests_total", route="other", status="404") == 1
    assert value("tokens_total", kind="reply") == 8
    assert value("tokens_total", kind="prompt") == 2 + 2 + 3 + 2
    assert value("first_token_seconds_count") == 2
    assert value("token_gap_seconds_count") == 6
    assert value("commit_seconds_count") == 2
    assert value("turns_total", finish_reason="stop") == 2
    assert value("funnel", stage="captured") == 2
    assert value("sessions") == 1
    assert (value("in_flight"), value("writer_queue"), value("policy_version")) == (0, 0, 0)
    assert "stereorl_policy_version 4.0" in again


async def test_the_store_is_read_for_metrics_once_in_a_while(
    setup: Setup, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []
    funnel = setup.store.funnel
    monkeypatch.setattr(setup.store, "funnel", lambda: calls.append(1) or funnel())
    async with setup.client() as client:
        for _ in range(5):
            await client.get("/metrics")
    assert len(calls) == 1


# --- versions ----------------------------------------------------------------------------------------------------


def publish(setup: Setup) -> int:
    versions = setup.versions
    stage = versions.stage()
    (stage / "adapter.bin").write_bytes(b"weights")
    manifest = Manifest(
        version=versions.next_number(),
        parent=0,
        step_id=None,
        created_at=0.0,
        adapter="lora",
        base_model="tiny",
        base_digest="",
        metrics={},
        status="published",
        files={},
    )
    return versions.publish(stage, manifest)


async def test_a_new_version_is_taken_up(setup: Setup) -> None:
    setup.overrides["serve.poll_s"] = 0.02
    async with setup.client() as client:
        number = publish(setup)
        await asyncio.sleep(0.1)
        assert setup.engine.used == []  # published is not yet current
        setup.versions.set_current(number)
        await until(lambda: setup.engine.version == number, "the new version")
        response = await say(client, [user("Hi")])
        setup.versions.set_current(0)
        await until(lambda: setup.engine.version == 0, "the roll back")
    assert response.headers["x-policy-version"] == str(number)
    assert setup.engine.used == [(number, setup.versions.path(number)), (0, None)]


async def test_the_current_version_serves_from_the_first_request_on(setup: Setup) -> None:
    number = publish(setup)
    setup.versions.set_current(number)
    async with setup.client() as client:
        assert (await say(client, [user("Hi")])).headers["x-policy-version"] == str(number)


@pytest.mark.parametrize("fault", ["refused", "damaged", "missing", "nonsense"])
async def test_a_bad_version_never_serves(setup: Setup, fault: str, caplog: pytest.LogCaptureFixture) -> None:
    setup.overrides["serve.poll_s"] = 0.02
    async with setup.client() as client:
        number = publish(setup)
        if fault == "refused":
            setup.engine.refuse = {number}
        elif fault == "damaged":
            (setup.versions.root / f"v{number:06d}" / "adapter.bin").write_bytes(b"other")
        setup.versions.set_current(number)
        if fault == "missing":
            (setup.versions.root / "CURRENT").write_text("99")
        elif fault == "nonsense":
            (setup.versions.root / "CURRENT").write_text("latest")
        await until(lambda: "keeps serving" in caplog.text, "the refusal")
        await asyncio.sleep(0.2)
        response = await say(client, [user("Hi")])
        text = (await client.get("/metrics")).text
        (setup.versions.root / "CURRENT").write_text(str(publish(setup)))
        await until(lambda: setup.engine.version == number + 1, "the next good version")
    assert response.status_code == 200
    assert response.headers["x-policy-version"] == "0"
    assert "stereorl_bad_versions_total 1.0" in text


# --- activity ----------------------------------------------------------------------------------------------------


async def test_the_learner_is_told_about_activity(setup: Setup) -> None:
    file = setup.home / "run" / "activity.json"

    def told() -> dict[str, Any]:
        return dict(json.loads(file.read_text())) if file.exists() else {}

    setup.engine.hold = asyncio.Event()
    async with setup.client() as client:
        waiting = asyncio.create_task(say(client, [user("Hi")]))
        await until(lambda: told().get("in_flight") == 1, "one request in flight")
        assert time.time() - told()["last_request_at"] < 10
        setup.engine.hold.set()
        await waiting
        await until(lambda: told().get("in_flight") == 0, "none in flight")


def test_no_stray_files(setup: Setup, tmp_path: Path) -> None:
    from stereorl.serve.watch import write_json

    write_json(tmp_path / "run" / "a.json", {"x": 1})
    write_json(tmp_path / "run" / "a.json", {"x": 2})
    assert [file.name for file in (tmp_path / "run").iterdir()] == ["a.json"]
    assert json.loads((tmp_path / "run" / "a.json").read_text()) == {"x": 2}
