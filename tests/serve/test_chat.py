"""Answers, plain and streamed: their shape, what is recorded, and in which order."""

from __future__ import annotations

import asyncio
import json
from concurrent.futures import Future
from typing import Any

import httpx
import numpy as np
import openai
import pytest

from stereorl.errors import EngineError, StoreError
from stereorl.serve.stops import StopScanner
from tests.serve.setting import Setup, assistant, say, user

pytestmark = pytest.mark.anyio


def events(text: str) -> list[Any]:
    """The data of each server-sent event; the last is "[DONE]" when the stream ended well."""
    data = [line.removeprefix("data: ") for line in text.split("\n\n") if line]
    return [item if item == "[DONE]" else json.loads(item) for item in data]


async def test_plain_answer_and_its_record(setup: Setup) -> None:
    async with setup.client() as client:
        response = await say(client, [user("Hi")], temperature=0.9, max_tokens=9, seed=5, stop=["zz"])
    body = response.json()
    assert response.status_code == 200
    assert body["choices"] == [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "Hello there!", "refusal": None},
            "logprobs": None,
            "finish_reason": "stop",
        }
    ]
    assert body["usage"] == {"prompt_tokens": 2, "completion_tokens": 4, "total_tokens": 6}
    assert body["id"] == "chatcmpl-" + response.headers["x-turn-id"]
    assert body["policy_version"] == 0 == int(response.headers["x-policy-version"])
    (turn,) = setup.turns()
    assert turn.turn_id == response.headers["x-turn-id"]
    assert turn.session_id == response.headers["x-session-id"]
    assert turn.prompt_ids.tolist() == list(setup.engine.requests[0].prompt_ids)
    assert len(turn.response_ids) == 4
    assert np.allclose(turn.log_probs, -0.5)
    assert (turn.sampling.temperature, turn.sampling.max_tokens, turn.sampling.seed) == (0.9, 9, 5)
    assert (turn.finish_reason, turn.kind, turn.index) == ("stop", "main", 0)


async def test_stream_shape(setup: Setup) -> None:
    async with setup.client() as client:
        response = await say(client, [user("Hi")], stream=True, stream_options={"include_usage": True})
    assert response.headers["content-type"].startswith("text/event-stream")
    assert response.headers["x-policy-version"] == "0"
    *chunks, done = events(response.text)
    assert done == "[DONE]"
    first, *deltas, finish, usage = chunks
    assert first["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert [chunk["choices"][0]["delta"]["content"] for chunk in deltas] == ["Hello", " there", "!"]
    assert finish["choices"][0] == {"index": 0, "delta": {}, "logprobs": None, "finish_reason": "stop"}
    assert usage["choices"] == []
    assert usage["usage"]["completion_tokens"] == 4
    assert all(chunk["usage"] is None for chunk in [first, *deltas, finish])
    assert {chunk["id"] for chunk in chunks} == {f"chatcmpl-{setup.turns()[0].turn_id}"}


async def test_stream_without_usage_has_none(setup: Setup) -> None:
    async with setup.client() as client:
        response = await say(client, [user("Hi")], stream=True)
    assert all("usage" not in chunk for chunk in events(response.text)[:-1])


async def test_log_probs_of_the_chosen_tokens(setup: Setup) -> None:
    async with setup.client() as client:
        plain = await say(client, [user("Hi")], logprobs=True, top_logprobs=2)
        streamed = await say(client, [user("Hi")], logprobs=True, stream=True)
    content = plain.json()["choices"][0]["logprobs"]["content"]
    assert [item["token"] for item in content] == ["Hello", " there", "!"]
    assert all(item["logprob"] == -0.5 for item in content)
    assert bytes(content[1]["bytes"]) == b" there"
    chunks = [c for c in events(streamed.text)[:-1] if c["choices"][0]["logprobs"]]
    assert [c["choices"][0]["logprobs"]["content"][0]["token"] for c in chunks] == ["Hello", " there", "!"]


async def test_tokens_carry_the_version_that_sampled_them(setup: Setup) -> None:
    setup.engine.hold = asyncio.Event()
    async with setup.client() as client:
        waiting = asyncio.create_task(say(client, [user("Hi")]))
        while not setup.engine.requests:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.05)
        setup.engine.version = 3
        setup.engine.hold.set()
        response = await waiting
    assert setup.turns()[0].versions.tolist() == [0, 0, 3, 3]
    assert response.json()["policy_version"] == 3


async def test_length_and_context_end_a_reply(setup: Setup) -> None:
    setup.renderer.context_length = 4
    async with setup.client() as client:
        short = await say(client, [user("Hi")], max_tokens=1)
        full = await say(client, [user("Hi")], max_tokens=50)
    assert short.json()["choices"][0]["finish_reason"] == "length"
    assert full.json()["usage"]["completion_tokens"] == 2  # 2 of prompt + 2 of reply fill the context
    assert full.json()["choices"][0]["finish_reason"] == "length"


async def test_max_completion_tokens_wins(setup: Setup) -> None:
    async with setup.client() as client:
        await say(client, [user("Hi")], max_tokens=1, max_completion_tokens=3)
    assert setup.engine.requests[0].sampling.max_tokens == 3


@pytest.mark.parametrize("stream", [False, True])
async def test_stop_string_over_several_tokens(setup: Setup, stream: bool) -> None:
    setup.engine.script = lambda n: ["One", " E", "N", "D", " never", ""]
    async with setup.client() as client:
        response = await say(client, [user("Hi")], stop="END", stream=stream)
    if stream:
        chunks = events(response.text)
        text = "".join(c["choices"][0]["delta"].get("content", "") for c in chunks[:-1])
        assert chunks[-2]["choices"][0]["finish_reason"] == "stop"
    else:
        text = response.json()["choices"][0]["message"]["content"]
        assert response.json()["choices"][0]["finish_reason"] == "stop"
    assert text == "One "
    (turn,) = setup.turns()
    assert (turn.finish_reason, len(turn.response_ids), turn.reply.content) == ("stop_string", 4, "One ")
    assert setup.engine.cancelled == [turn.turn_id]  # the engine was told to stop


@pytest.mark.parametrize(
    ("stops", "pieces", "shown", "hit"),
    [
        (["END"], ["aE", "N", "x"], ["a", "", "ENx"], False),
        (["END"], ["aE", "ND", "x"], ["a", "", ""], True),
        (["END"], ["aEN"], ["a"], False),
        (["aa", "ab"], ["xa", "b"], ["x", ""], True),
        (["\n\n"], ["a\n", "b\n", "\nc"], ["a", "\nb", ""], True),
        (["abc", "b"], ["ab"], ["a"], True),
        (["abab"], ["aba", "cab", "ab"], ["", "abac", ""], True),
        ([], ["a", "b"], ["a", "b"], False),
    ],
)
def test_stop_scanner(stops: list[str], pieces: list[str], shown: list[str], hit: bool) -> None:
    scanner = StopScanner(stops)
    assert [scanner.push(piece) for piece in pieces] == shown
    assert scanner.hit is hit
    rest = scanner.flush()
    if not hit:
        assert "".join(shown) + rest == "".join(pieces)


# --- acknowledged means durable ----------------------------------------------------------------------------------


class SlowStore:
    """A store whose writer resolves its futures when the test says so."""

    def __init__(self, store: Any):
        self._store = store
        self.submitted: list[Any] = []
        self.futures: list[Future[None]] = []
        self.depth = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def writer(self, *, batch_ms: float) -> SlowStore:
        return self

    def submit(self, records: Any) -> Future[None]:
        future: Future[None] = Future()
        future.set_running_or_notify_cancel()
        self.submitted.append(list(records))
        self.futures.append(future)
        return future

    def close(self, timeout: float = 10) -> None:
        pass


async def drive(app: Any, body: dict[str, Any]) -> tuple[asyncio.Task[None], list[Any]]:
    """Run one request by hand, so that what has been sent so far can be looked at."""
    sent: list[Any] = []
    data = json.dumps(body).encode()
    messages = [{"type": "http.request", "body": data, "more_body": False}]

    async def receive() -> Any:
        if messages:
            return messages.pop()
        await asyncio.Event().wait()

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "POST",
        "path": "/v1/chat/completions",
        "raw_path": b"/v1/chat/completions",
        "query_string": b"",
        "headers": [(b"host", b"localhost"), (b"content-type", b"application/json")],
    }
    return asyncio.create_task(app(scope, receive, send)), sent


@pytest.mark.parametrize("stream", [False, True])
async def test_the_end_is_sent_after_the_commit(setup: Setup, stream: bool) -> None:
    setup.store = slow = SlowStore(setup.store)
    app = setup.app()
    async with app.router.lifespan_context(app):
        task, sent = await drive(app, {"messages": [user("Hi")], "stream": stream})
        while not slow.futures:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.1)
        before = b"".join(message.get("body", b"") for message in sent)
        assert not task.done()
        if stream:
            assert b" there" in before  # the text itself is not held back
            assert b'"finish_reason":"stop"' not in before
            assert b"[DONE]" not in before
        else:
            assert sent == []
        slow.futures[0].set_result(None)
        await asyncio.wait_for(task, 5)
    after = b"".join(message.get("body", b"") for message in sent)
    assert (b"[DONE]" in after) if stream else (b"Hello there!" in after)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (StoreError("The disk that holds x is full [database or disk is full]"), 507, "insufficient_storage"),
        (StoreError("x is locked"), 500, "store_error"),
    ],
)
async def test_a_failed_commit_is_never_acknowledged(
    setup: Setup, stream: bool, error: StoreError, status: int, code: str
) -> None:
    setup.store = slow = SlowStore(setup.store)
    app = setup.app()
    async with app.router.lifespan_context(app):
        task, sent = await drive(app, {"messages": [user("Hi")], "stream": stream})
        while not slow.futures:
            await asyncio.sleep(0.01)
        slow.futures[0].set_exception(error)
        await asyncio.wait_for(task, 5)
    text = b"".join(message.get("body", b"") for message in sent).decode()
    if stream:
        last = events(text)[-1]
        assert last["error"]["code"] == code
        assert '"finish_reason":"stop"' not in text
        assert "[DONE]" not in text
    else:
        assert sent[0]["status"] == status
        assert json.loads(text)["error"]["code"] == code
    assert len(slow.submitted) == 1  # and it is not recorded a second time as failed


async def test_a_hang_up_during_the_commit_does_not_undo_it(setup: Setup) -> None:
    setup.store = slow = SlowStore(setup.store)
    app = setup.app()
    async with app.router.lifespan_context(app):
        task, _ = await drive(app, {"messages": [user("Hi")], "stream": True})
        while not slow.futures:
            await asyncio.sleep(0.01)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert not slow.futures[0].cancelled()
        slow.futures[0].set_result(None)
    assert len(slow.submitted) == 1
    assert slow.submitted[0][1].finish_reason == "stop"


# --- engine failures ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("after", [0, 2])
async def test_an_engine_that_breaks(setup: Setup, stream: bool, after: int) -> None:
    setup.engine.fail_after = after
    setup.engine.failure = EngineError("secret path /x")
    async with setup.client() as client:
        response = await say(client, [user("Hi")], stream=stream)
        fine = await client.get("/healthz")
    if stream and after:
        last = events(response.text)[-1]
        assert "[DONE]" not in response.text
    else:
        assert response.status_code == 500
        last = response.json()
    assert last["error"]["type"] == "server_error"
    assert "secret" not in json.dumps(last)
    assert fine.status_code == 200
    (turn,) = setup.turns()
    assert (turn.finish_reason, len(turn.response_ids)) == ("error", after)
    assert setup.store.detail(turn.turn_id).drop == "error"


async def test_a_log_prob_that_is_no_number_is_refused_not_stored(setup: Setup) -> None:
    setup.engine.log_prob = float("nan")
    async with setup.client() as client:
        response = await say(client, [user("Hi")])
    assert response.status_code == 500
    assert setup.turns()[0].finish_reason == "error"
    assert len(setup.turns()[0].log_probs) == 0


async def test_a_reply_that_takes_too_long(setup: Setup) -> None:
    setup.overrides["engine.timeout_s"] = 0.2
    setup.engine.hold = asyncio.Event()
    async with setup.client() as client:
        response = await say(client, [user("Hi")])
    assert response.status_code == 500
    assert response.json()["error"]["code"] == "engine_timeout"
    assert "engine.timeout_s" in response.json()["error"]["message"]
    assert setup.turns()[0].finish_reason == "error"


# --- a real client over a real connection ------------------------------------------------------------------------


def test_the_openai_client(setup: Setup) -> None:
    with setup.server() as url, openai.OpenAI(base_url=f"{url}/v1", api_key="x") as client:
        plain = client.chat.completions.create(model="m", messages=[user("Hi")], temperature=0.5)  # type: ignore[list-item]
        stream = client.chat.completions.create(
            model="m",
            messages=[user("Hi"), assistant("Hello there!"), user("More")],  # type: ignore[list-item]
            stream=True,
            stream_options={"include_usage": True},
        )
        chunks = list(stream)
        with pytest.raises(openai.BadRequestError) as refusal:
            client.chat.completions.create(model="m", messages=[], temperature=0.5)
        models = client.models.list()
        one = client.models.retrieve("tiny")
    assert plain.choices[0].message.content == "Hello there!"
    assert plain.policy_version == 0  # type: ignore[attr-defined]
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == "Hello there!"
    assert chunks[-1].usage is not None
    assert refusal.value.code == "invalid_value"
    assert refusal.value.param == "messages"
    assert [model.id for model in models] == ["tiny"] == [one.id]
    first, second = setup.turns()
    assert second.session_id == first.session_id


def _wait_for(condition: Any, seconds: float = 5.0) -> None:
    import time

    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.02)


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_hangs_up(setup: Setup, stream: bool) -> None:
    setup.engine.script = lambda n: [f" w{i}" for i in range(1000)]
    setup.engine.delay_s = 0.01
    body = {"messages": [user("Hi")], "stream": stream, "max_tokens": 1000}
    with setup.server() as url, httpx.Client(base_url=url) as client:
        if stream:
            with client.stream("POST", "/v1/chat/completions", json=body) as response:
                lines = response.iter_lines()
                for _ in range(5):
                    next(lines)
        else:
            with pytest.raises(httpx.ReadTimeout):
                client.post("/v1/chat/completions", json=body, timeout=0.3)
        _wait_for(lambda: setup.engine.cancelled)
        _wait_for(lambda: setup.turns())
        assert httpx.get(f"{url}/healthz").status_code == 200
    (turn,) = setup.turns()
    assert turn.finish_reason == "cancelled"
    assert 0 < len(turn.response_ids) < 900
    assert turn.reply.content == "".join(f" w{i}" for i in range(len(turn.response_ids)))
    assert setup.store.detail(turn.turn_id).drop == "cancelled"


def test_shutdown_drains_then_records_what_it_cuts(setup: Setup) -> None:
    setup.engine.script = lambda n: [f" w{i}" for i in range(10_000)]
    setup.engine.delay_s = 0.01
    body = {"messages": [user("Hi")], "stream": True, "max_tokens": 10_000}
    with httpx.Client() as client:
        with setup.server() as url:
            response = client.send(
                client.build_request("POST", f"{url}/v1/chat/completions", json=body), stream=True
            )
            next(response.iter_lines())
        response.close()
    (turn,) = setup.turns()
    assert turn.finish_reason == "cancelled"
