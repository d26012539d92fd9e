"""Bad input: each is a clear error in OpenAI's shape, nothing is generated, nothing breaks, nothing is lost."""

from __future__ import annotations

import json
import logging
import socket
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from stereorl.errors import ConfigError, RequestError
from stereorl.serve import problems
from tests.serve.setting import Setup, say, user

pytestmark = pytest.mark.anyio
JSON = {"content-type": "application/json"}
PATH = "/v1/chat/completions"


def refusal(response: Any, status: int, *, code: str | None = None, param: str | None = None) -> str:
    """Check the shape of an error; returns its message."""
    assert response.status_code == status, response.text
    body = response.json()
    assert set(body) == {"error"}
    assert set(body["error"]) == {"message", "type", "param", "code"}
    assert body["error"]["message"]
    if code is not None:
        assert body["error"]["code"] == code
    if param is not None:
        assert body["error"]["param"] == param
    return str(body["error"]["message"])


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"null",
        b"[]",
        b'"text"',
        b"{'messages': []}",
        b"\xff\xfe\x00",
        b'{"messages": "\xe9"}',
        b"[" * 100_000,
        b'{"messages":' * 5000 + b"1" + b"}" * 5000,
        b'{"messages":[{"role":"user","content":"\\ud800"}]}',
        b'{"messages":[{"role":"user","content":"x"}],"seed":' + b"9" * 5000 + b"}",
        b'{"messages":[{"role":"user","content":"x"}]} trailing',
    ],
)
async def test_bodies_that_are_no_request(setup: Setup, body: bytes) -> None:
    async with setup.client() as client:
        refusal(await client.post(PATH, content=body, headers=JSON), 400)
        refusal(await client.post("/v1/feedback", content=body, headers=JSON), 400)
        assert (await say(client, [user("still here")])).status_code == 200
    assert len(setup.engine.requests) == 1


@pytest.mark.parametrize(
    "kind", [None, "text/plain", "application/x-www-form-urlencoded", "multipart/form-data"]
)
async def test_content_types_that_a_web_page_can_send_unasked(setup: Setup, kind: str | None) -> None:
    data = json.dumps({"messages": [user("Hi")]}).encode()
    async with setup.client() as client:
        response = await client.post(PATH, content=data, headers={"content-type": kind} if kind else {})
        fine = await client.post(
            PATH, content=data, headers={"content-type": "Application/JSON; charset=utf-8"}
        )
    refusal(response, 415, code="unsupported_media_type")
    assert fine.status_code == 200


def _call(arguments: str) -> dict[str, Any]:
    return {"id": "1", "function": {"name": "f", "arguments": arguments}}


BAD = [
    ({"messages": []}, "messages"),
    ({}, "messages"),
    ({"messages": None}, "messages"),
    ({"messages": "hi"}, "messages"),
    ({"messages": [{"role": "wizard", "content": "x"}]}, "messages[0]"),
    ({"messages": [{"content": "x"}]}, "messages[0]"),
    ({"messages": [user("x"), {"role": "user"}]}, "messages[1].content"),
    ({"messages": [{"role": "user", "content": None}]}, "messages[0].content"),
    ({"messages": [{"role": "user", "content": 3}]}, "messages[0].content"),
    ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages[0].content[0].text"),
    (
        {"messages": [{"role": "assistant", "tool_calls": [{"id": "1"}]}]},
        "messages[0].tool_calls[0].function",
    ),
    (
        {"messages": [{"role": "assistant", "tool_calls": [_call('{"a":' * 101 + "1" + "}" * 101)]}]},
        "messages[0].tool_calls[0].function.arguments",
    ),
    (
        {"messages": [{"role": "assistant", "tool_calls": [_call('["\\ud800", ' + "[" * 100_000)]}]},
        "messages[0].tool_calls[0].function.arguments",
    ),
    ({"temperature": -0.1}, "temperature"),
    ({"temperature": 2.01}, "temperature"),
    ({"temperature": 1e300}, "temperature"),
    ({"temperature": "hot"}, "temperature"),
    ({"temperature": True}, "temperature"),
    ({"top_p": 0}, "top_p"),
    ({"top_p": 1.5}, "top_p"),
    ({"top_k": -2}, "top_k"),
    ({"top_k": 0.5}, "top_k"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"max_tokens": -5}, "max_tokens"),
    ({"max_tokens": 10**30}, "max_tokens"),
    ({"max_completion_tokens": 0}, "max_completion_tokens"),
    ({"n": 2}, "n"),
    ({"n": 0}, "n"),
    ({"stop": ["a", "b", "c", "d", "e"]}, "stop"),
    ({"stop": [1]}, "stop[0]"),
    ({"stop": 1}, "stop"),
    ({"seed": 2**63}, "seed"),
    ({"seed": "lucky"}, "seed"),
    ({"stream": "yes"}, "stream"),
    ({"stream_options": {"include_usage": 3}}, "stream_options.include_usage"),
    ({"top_logprobs": 21}, "top_logprobs"),
    ({"tools": [{"type": "retrieval"}]}, "tools[0].type"),
    ({"tools": [{"type": "function", "function": {}}]}, "tools[0].function.name"),
    ({"model": 3}, "model"),
]


@pytest.mark.parametrize(("change", "param"), BAD, ids=[json.dumps(change)[:60] for change, _ in BAD])
async def test_values_that_are_refused_by_name(setup: Setup, change: dict[str, Any], param: str) -> None:
    body = change if "messages" in change or not change else {"messages": [user("Hi")], **change}
    async with setup.client() as client:
        response = await client.post(PATH, json=body)
    refusal(response, 400, code="invalid_value", param=param)
    assert setup.engine.requests == []
    assert setup.turns() == []


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999"])
@pytest.mark.parametrize("field", ["temperature", "top_p"])
async def test_numbers_that_are_none(setup: Setup, field: str, number: str) -> None:
    data = f'{{"messages": [{{"role": "user", "content": "x"}}], "{field}": {number}}}'
    async with setup.client() as client:
        refusal(await client.post(PATH, content=data, headers=JSON), 400, param=field)


async def test_nan_inside_a_tool(setup: Setup) -> None:
    tool = '{"type": "function", "function": {"name": "f", "parameters": {"x": NaN}}}'
    data = f'{{"messages": [{{"role": "user", "content": "x"}}], "tools": [{tool}]}}'
    async with setup.client() as client:
        refusal(await client.post(PATH, content=data, headers=JSON), 400, param="tools")


async def test_messages_say_what_to_do(setup: Setup) -> None:
    image = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:..."}}]}
    async with setup.client() as client:
        assert "text parts only" in refusal(await say(client, [image]), 400)
        assert "'user'" in refusal(await say(client, [{"role": "wizard", "content": "x"}]), 400)
        assert "One reply" in refusal(await say(client, [user("x")], n=2), 400)


@pytest.mark.parametrize(
    "change",
    [
        {"unknown": {"a": [1]}, "logit_bias": {}, "metadata": {"x": "y"}, "presence_penalty": 0},
        {"temperature": None, "top_p": None, "stop": None, "max_tokens": None, "tools": None, "n": None},
        {"n": 1, "seed": -3, "top_k": -1, "stop": [], "user": "u", "logprobs": False},
        {"max_tokens": 7.0, "temperature": 1, "top_k": 40.0},
        {
            "tools": [
                {
                    "type": "function",
                    "function": {"name": "f", "strict": True, "parameters": {"type": "object"}},
                }
            ]
        },
        {"stop": ""},
        {"messages": [{"role": "assistant", "tool_calls": [_call('{"a": "' + "[{" * 500 + '"}')]}]},
        {"messages": [{"role": "assistant", "tool_calls": [_call("{}" * 500)]}]},
    ],
)
async def test_what_real_clients_send_is_taken(setup: Setup, change: dict[str, Any]) -> None:
    async with setup.client() as client:
        assert (await say(client, **{"messages": [user("Hi")], **change})).status_code == 200


@pytest.mark.parametrize(("asked", "used"), [(0, 0), (1e-300, 0), (1e-5, 0), (0.01, 0.01)])
async def test_a_temperature_too_small_to_divide_by_is_greedy(
    setup: Setup, asked: float, used: float
) -> None:
    async with setup.client() as client:
        assert (await say(client, [user("Hi")], temperature=asked)).status_code == 200
    assert setup.engine.requests[0].sampling.temperature == used


async def test_tools_are_rendered_and_recorded(setup: Setup) -> None:
    tool = {"type": "function", "function": {"name": "f", "strict": True}}
    async with setup.client() as client:
        await say(client, [user("Hi")], tools=[tool])
    assert setup.turns()[0].tools == (tool,)
    assert "tools:1" in [setup.renderer.decode([i]) for i in setup.engine.requests[0].prompt_ids]


async def test_a_prompt_over_the_context(setup: Setup) -> None:
    setup.renderer.context_length = 5
    async with setup.client() as client:
        response = await say(client, [user("a b c d e f")], stream=True)
    message = refusal(response, 400, code="context_length_exceeded", param="messages")
    assert "7 tokens" in message
    assert "5" in message
    assert setup.turns() == []


@pytest.mark.parametrize(
    ("headers", "param"),
    [
        ({"X-Session-Id": "a b"}, "x-session-id"),
        ({"X-Session-Id": "x" * 129}, "x-session-id"),
        ({"X-Session-Id": "a~b"}, "x-session-id"),
        ({"X-Session-Id": "~0123abcd"}, "x-session-id"),
        ({"X-Session-Id": "../../etc"}, "x-session-id"),
        ({"X-Turn-Type": "middle"}, "x-turn-type"),
        ({"X-Session-Done": "perhaps"}, "x-session-done"),
    ],
)
async def test_headers_are_validated(setup: Setup, headers: dict[str, str], param: str) -> None:
    async with setup.client() as client:
        refusal(await say(client, [user("Hi")], headers=headers), 400, param=param)


async def test_too_many_waiting(setup: Setup) -> None:
    setup.engine.load = 16 + 256
    async with setup.client() as client:
        response = await say(client, [user("Hi")])
    refusal(response, 429, code="rate_limit_exceeded")
    assert response.headers["retry-after"] == "1"
    assert response.json()["error"]["type"] == "rate_limit_error"


async def test_the_engine_may_refuse_too(setup: Setup) -> None:
    setup.engine.fail_after = 0
    setup.engine.failure = RequestError("full", status=429, code="rate_limit_exceeded")
    async with setup.client() as client:
        refusal(await say(client, [user("Hi")], stream=True), 429)
    assert setup.turns() == []  # nothing began, so there is nothing to record


async def test_paths_and_methods(setup: Setup) -> None:
    async with setup.client() as client:
        refusal(await client.get("/nowhere"), 404, code="not_found")
        refusal(await client.get("/v1/models/other"), 404)
        wrong = await client.get(PATH)
        refusal(wrong, 405, code="method_not_allowed")
        assert wrong.headers["allow"] == "POST"
        refusal(await client.options(PATH), 405)
        assert "access-control-allow-origin" not in wrong.headers


# --- large bodies ------------------------------------------------------------------------------------------------


async def test_ten_megabytes(setup: Setup) -> None:
    async with setup.client() as client:
        response = await say(client, [user("x" * 10_000_000)])
        assert "serve.max_body_mb" in refusal(response, 413, code="request_too_large")

        async def pieces() -> Any:
            for _ in range(100):
                yield b" " * 100_000

        refusal(await client.post(PATH, content=pieces(), headers=JSON), 413)
        setup.overrides["serve.max_body_mb"] = 20
    async with setup.client() as client:
        assert (await say(client, [user("word " * 10)])).status_code == 200


def test_ten_megabytes_over_a_real_connection(setup: Setup) -> None:
    with setup.server() as url, httpx.Client(base_url=url, timeout=20) as client:
        for _ in range(3):
            refusal(client.post(PATH, json={"messages": [user("x" * 10_000_000)]}), 413)

        def endless() -> Iterator[bytes]:
            for _ in range(120):
                yield b" " * 100_000

        refusal(client.post(PATH, content=endless(), headers=JSON), 413)
        assert client.get("/healthz").status_code == 200


def test_a_client_that_goes_before_its_body_came(setup: Setup, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="stereorl.serve")
    with setup.server() as url:
        host, port = url.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port))) as connection:
            head = (
                "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            )
            connection.sendall(f"{head}Content-Length: 100\r\n\r\n{{".encode())
            time.sleep(0.1)
        deadline = time.monotonic() + 10
        while "before its whole body" not in caplog.text and time.monotonic() < deadline:
            time.sleep(0.01)
    assert "before its whole body" in caplog.text
    assert "Traceback" not in caplog.text


async def test_a_log_line_cannot_be_forged(setup: Setup, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="stereorl.serve")
    async with setup.client() as client:
        refusal(await client.get("/v1/models/x%0a2030-01-01 ERROR forged"), 404)
    assert [record.getMessage() for record in caplog.records if "\n" in record.getMessage()] == []


async def test_a_large_body_within_the_limit(setup: Setup) -> None:
    async with setup.client() as client:
        response = await say(client, [user("word " * 1_000_000)])
    assert response.status_code == 200
    assert response.json()["usage"]["prompt_tokens"] == 1_000_001


# --- who may come in ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("host", "allowed"),
    [
        ("localhost:8018", True),
        ("127.0.0.1", True),
        ("[::1]:80", True),
        ("LOCALHOST", True),
        ("evil.example", False),
        ("evil.example:8018", False),
        ("127.0.0.1.evil.example", False),
        ("", False),
    ],
)
async def test_rebound_names_are_refused(setup: Setup, host: str, allowed: bool) -> None:
    async with setup.client() as client:
        response = await client.get("/v1/models", headers={"host": host})
    if allowed:
        assert response.status_code == 200
    else:
        refusal(response, 403, code="unknown_host")


async def test_the_api_key(setup: Setup, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STEREORL_API_KEY", "sésame")
    async with setup.client() as client:
        for headers in ({}, {"authorization": "Bearer wrong"}, {"authorization": "Basic x"}):
            for path in ("/v1/models", "/metrics", "/openapi.json", "/nowhere"):
                response = await client.get(path, headers=headers)
                refusal(response, 401, code="invalid_api_key")
                assert response.headers["www-authenticate"] == "Bearer"
        assert (await client.get("/healthz")).status_code == 200
        right = {"authorization": "Bearer sésame".encode()}
        assert (await client.get("/v1/models", headers=right)).status_code == 200


@pytest.mark.parametrize("host", ["0.0.0.0", "192.168.1.5", "::", "example.org"])
async def test_an_open_bind_needs_a_key(setup: Setup, host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    setup.overrides["serve.host"] = host
    with pytest.raises(ConfigError, match="STEREORL_API_KEY"):
        setup.app()
    monkeypatch.setenv("STEREORL_API_KEY", "k")
    async with setup.client(Authorization="Bearer k", Host="anything.example") as client:
        assert (await client.get("/v1/models")).status_code == 200


def test_a_full_disk_is_known_by_its_causes() -> None:
    import errno

    outer = OSError("outer")
    outer.__cause__ = OSError(errno.ENOSPC, "No space left on device")
    assert problems.disk_full(outer)
    assert not problems.disk_full(OSError("no"))


@pytest.mark.parametrize(
    ("path", "head", "item", "tail"),
    [
        ("score", '{"response_ids": [1], "prompt_ids": [', "-1", "]}"),
        ("score", '{"prompt_ids": [1], "response_ids": [', '"a"', "]}"),
        ("chat/completions", '{"messages": [', "1", "]}"),
        ("chat/completions", '{"messages": [{"role": "user", "content": [', "1", "]}]}"),
        ("chat/completions", '{"messages": [{"role": "assistant", "tool_calls": [', "1", "]}]}"),
        ("chat/completions", '{"messages": [{"role": "user", "content": "x"}], "tools": [', "1", "]}"),
        ("chat/completions", '{"messages": [{"role": "user", "content": "x"}], "stop": [', "1", "]}"),
    ],
)
async def test_a_long_list_of_mistakes_keeps_nobody_waiting(
    setup: Setup, path: str, head: str, item: str, tail: str
) -> None:
    body = head + ",".join([item] * 1_000_000) + tail
    async with setup.client() as client:
        began = time.perf_counter()
        kind = {"Content-Type": "application/json"}
        answer = await client.post(f"/v1/{path}", content=body, headers=kind)
    assert answer.status_code == 400
    assert time.perf_counter() - began < 3  # it took ten seconds where each mistake was listed
