"""What the benchmarks share: prompts, a real server process, and clients that note when each chunk came."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from stereorl.data import Message

OPENINGS = (
    "Explain in detail how a sailing boat can move against the wind.",
    "Write a long story about a lighthouse keeper and a storm.",
    "Describe every step of baking bread, from flour to crust.",
    "Tell me all you know about the history of glass.",
    "Explain at length how rivers shape valleys over time.",
    "Describe a day in the life of a beekeeper, in detail.",
    "Write a long letter from a traveller in the desert.",
    "Explain how a library sorts its books, with examples.",
)


def messages(number: int, salt: str) -> tuple[Message, ...]:
    """A conversation that no earlier request shares a long prefix with."""
    return (Message("user", f"[{salt} {number}] {OPENINGS[number % len(OPENINGS)]}"),)


@contextlib.contextmanager
def server(home: Path, *settings: str) -> Iterator[str]:
    """`stereorl serve` as users run it; yields its URL."""
    args = [sys.executable, "-m", "stereorl", "serve", "--home", str(home), "--set", "serve.port=0"]
    for setting in settings:
        args += ["--set", setting]
    with (home / "serve.log").open("wb") as log:
        process = subprocess.Popen(args, stdout=log, stderr=log, env=dict(os.environ))
    try:
        yield _url(home, process)
    finally:
        process.terminate()
        process.wait(30)


def _url(home: Path, process: subprocess.Popen[bytes]) -> str:
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise RuntimeError("the server ended: " + (home / "serve.log").read_text()[-2000:])
        with contextlib.suppress(OSError, ValueError, httpx.HTTPError):
            url = f"http://127.0.0.1:{json.loads((home / 'run' / 'serve.json').read_text())['port']}"
            if httpx.get(url + "/healthz", timeout=5).status_code == 200:
                return url
        time.sleep(0.1)
    raise TimeoutError("waited 120 s for the server to be healthy")


@dataclass
class Heard:
    """What one client got: arrival time of each text chunk, tokens by the usage chunk, and any error."""

    times: list[float] = field(default_factory=list)
    tokens: int = 0
    error: str = ""


def stream(url: str, number: int, salt: str, max_tokens: int) -> Heard:
    """One streamed request over HTTP."""
    heard = Heard()
    body = {
        "model": "any",
        "messages": [m.as_dict() for m in messages(number, salt)],
        "max_tokens": max_tokens,
        "temperature": 0.6,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    try:
        with httpx.stream("POST", url + "/v1/chat/completions", json=body, timeout=300) as response:
            response.raise_for_status()
            for line in response.iter_lines():
                if not line.startswith("data: {"):
                    continue
                chunk = json.loads(line[6:])
                if "error" in chunk:
                    heard.error = str(chunk["error"])
                if any(c["delta"].get("content") for c in chunk.get("choices", ())):
                    heard.times.append(time.perf_counter())
                if chunk.get("usage"):
                    heard.tokens = chunk["usage"]["completion_tokens"]
    except httpx.HTTPError as error:
        heard.error = repr(error)
    return heard


def streams(url: str, clients: int, salt: str, max_tokens: int) -> list[Heard]:
    """`clients` streams at once."""
    out: list[Heard] = [Heard() for _ in range(clients)]

    def run(number: int) -> None:
        out[number] = stream(url, number, salt, max_tokens)

    threads = [threading.Thread(target=run, args=(n,)) for n in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return out


def temporary_home() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="stereorl-bench-")
