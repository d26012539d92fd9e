"""Real `stereorl` processes under test: start, wait for a named condition, kill, read what they said."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx

Settings = dict[str, str | int | float]


def wait_for(what: str, check: Callable[[], bool], *, seconds: float) -> None:
    """Poll `check` until it holds; a failure says what was waited for."""
    end = time.monotonic() + seconds
    while not check():
        assert time.monotonic() < end, f"waited {seconds:.0f} s for {what}"
        time.sleep(0.05)


@dataclass
class Running:
    """One process with its log."""

    popen: subprocess.Popen[bytes]
    log: Path

    @property
    def alive(self) -> bool:
        return self.popen.poll() is None

    def expect_killed(self, *, seconds: float) -> None:
        """Wait until the process has died by SIGKILL, and by nothing else."""
        wait_for(f"SIGKILL of {self.popen.args}", lambda: not self.alive, seconds=seconds)
        assert self.popen.returncode == -signal.SIGKILL, self.said()

    def stop(self) -> None:
        if self.alive:
            self.popen.send_signal(signal.SIGINT)
            try:
                self.popen.wait(20)
            except subprocess.TimeoutExpired:
                self.popen.kill()
                self.popen.wait(10)

    def said(self) -> str:
        return self.log.read_text(errors="replace")[-4000:]


@dataclass
class Home:
    """A home folder and the processes that work on it."""

    path: Path
    settings: Settings

    def start(self, command: str, *, kill_at: str = "", **settings: str | int | float) -> Running:
        args = [sys.executable, "-m", "stereorl", command, "--home", str(self.path)]
        for key, value in {**self.settings, **settings}.items():
            text = json.dumps(value) if isinstance(value, str) else value
            args += ["--set", f"{key.replace('__', '.')}={text}"]
        log = self.path / f"{command}-{time.monotonic_ns()}.log"
        env = {**os.environ, "STEREORL_KILL_AT": kill_at, "OMP_WAIT_POLICY": "PASSIVE"}
        with log.open("wb") as out:
            return Running(subprocess.Popen(args, stdout=out, stderr=out, env=env), log)

    def url(self) -> str:
        info = json.loads((self.path / "run" / "serve.json").read_text())
        return f"http://127.0.0.1:{info['port']}"

    @contextlib.contextmanager
    def server(self, **settings: str | int | float) -> Iterator[str]:
        process = self.start_server(**settings)
        try:
            yield self.url()
        finally:
            process.stop()

    def start_server(self, *, kill_at: str = "", **settings: str | int | float) -> Running:
        """Start `stereorl serve` and wait until it is healthy; yields nothing stale from an earlier, killed one."""
        (self.path / "run" / "serve.json").unlink(missing_ok=True)
        process = self.start("serve", kill_at=kill_at, **settings)

        def healthy() -> bool:
            assert process.alive, process.said()
            try:
                return httpx.get(self.url() + "/healthz", timeout=5).status_code == 200
            except (OSError, httpx.HTTPError, json.JSONDecodeError):
                return False

        wait_for("the server to be healthy", healthy, seconds=90)
        return process
