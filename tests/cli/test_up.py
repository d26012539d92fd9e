"""`stereorl up` for real: it serves, survives the death of its server, and ends well."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from stereorl.study.supervise import process_alive, read_address
from stereorl.study.user import connect


def hello(url: str) -> str | None:
    with connect(url) as client:
        answer = client.chat.completions.create(
            model="any", messages=[{"role": "user", "content": "Say hello."}], max_tokens=4
        )
    return answer.choices[0].message.content


def wait_for(what: Callable[[], object], timeout_s: float = 240) -> None:
    deadline = time.monotonic() + timeout_s
    while not what():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.1)


@pytest.mark.e2e
@pytest.mark.model
@pytest.mark.timeout(900)
def test_up_serves_survives_and_ends(tmp_path: Path) -> None:
    out = tmp_path / "out"
    command = [sys.executable, "-m", "stereorl", "up", "--home", str(tmp_path), "--set", "serve.port=0"]
    with out.open("wb") as file:
        process = subprocess.Popen(
            command, stdout=file, stderr=file, env={**os.environ, "PYTHONUNBUFFERED": "1"}
        )
    try:
        wait_for(lambda: "Ready:" in out.read_text() or process.poll() is not None)
        text = out.read_text()
        url = re.search(r"Ready: (http://[\d.:]+)/v1", text)
        assert url, text
        assert f"curl {url[1]}/v1/chat/completions" in text
        assert hello(url[1])

        first = read_address(tmp_path)
        assert first is not None
        os.kill(first.pid, signal.SIGKILL)
        wait_for(lambda: (now := read_address(tmp_path)) is not None and now.pid != first.pid)
        assert hello(url[1])
        assert "serve was ended by SIGKILL; restart 1 of 5" in out.read_text()

        learner = int((tmp_path / "run" / "learn.lock").read_text())
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0
        assert read_address(tmp_path) is None
        assert not process_alive(learner)
        assert "Traceback" not in out.read_text()
    finally:
        process.kill()
        process.wait()


@pytest.mark.e2e
@pytest.mark.timeout(300)
def test_up_without_a_model_shows_the_servers_last_words(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "stereorl",
        "up",
        "--home",
        str(tmp_path),
        "--model",
        str(tmp_path / "none"),
    ]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    assert ran.returncode == 2
    assert "The server ended with status 2 while starting" in ran.stderr
    assert f"There is no folder {tmp_path / 'none'}" in ran.stderr
    assert "Traceback" not in ran.stderr
