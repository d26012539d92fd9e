"""The server process: one per home, known by its file, ended by a signal."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
from pathlib import Path

import httpx
import pytest

from stereorl.config import ServeConfig
from stereorl.errors import ConfigError
from stereorl.serve.run import bind, only_server, run_server, serve
from tests.serve.setting import Setup, say, user

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_ends_it_after_the_replies_in_flight(setup: Setup, number: int) -> None:
    setup.engine.script = lambda n: [*(f" w{i}" for i in range(20)), ""]
    setup.engine.delay_s = 0.02
    told = setup.home / "run" / "serve.json"
    with bind(ServeConfig(port=0)) as listener:
        task = asyncio.create_task(serve(setup.app(), listener, setup.home / "run"))
        while not told.exists():
            await asyncio.sleep(0.01)
        facts = json.loads(told.read_text())
        assert facts["pid"] == os.getpid()
        assert facts["port"] > 0
        async with httpx.AsyncClient(base_url=f"http://{facts['host']}:{facts['port']}") as client:
            waiting = asyncio.create_task(say(client, [user("Hi")]))
            while not setup.engine.requests:
                await asyncio.sleep(0.01)
            os.kill(os.getpid(), number)
            response = await waiting
        await asyncio.wait_for(task, 15)
    assert response.status_code == 200
    assert [turn.finish_reason for turn in setup.turns()] == ["stop"]
    assert not told.exists()


def test_one_server_per_home(tmp_path: Path) -> None:
    with only_server(tmp_path / "run"):
        with pytest.raises(ConfigError, match="Another server"), only_server(tmp_path / "run"):
            pass
    with only_server(tmp_path / "run"):
        pass


def test_a_taken_port_and_an_unknown_host() -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        with pytest.raises(ConfigError, match=r"serve\.port"), bind(ServeConfig(port=other.getsockname()[1])):
            pass
    with pytest.raises(ConfigError), bind(ServeConfig(host="203.0.113.7", port=0)):
        pass


def test_an_open_bind_without_a_key_fails_before_anything_is_loaded(setup: Setup) -> None:
    setup.overrides["serve.host"] = "0.0.0.0"
    with pytest.raises(ConfigError, match="STEREORL_API_KEY"):
        run_server(setup.config)
    assert not (setup.home / "run").exists()


def test_ipv6_loopback() -> None:
    try:
        with bind(ServeConfig(host="[::1]", port=0)) as listener:
            assert listener.getsockname()[0] == "::1"
    except ConfigError:
        pytest.skip("this machine has no IPv6")
