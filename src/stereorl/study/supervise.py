"""Keeps one server and one learner alive beside each other; `stereorl up` and the demo use it.

    supervisor ──starts──▶ serve ── run/serve.json ──▶ supervisor waits for /healthz, then tells the URL
        │  └─────starts──▶ learn
        └─ tick(): a child that died is restarted after 1, 2, 4 ... s; one that keeps dying ends the run by name

Children live in sessions of their own, so that Ctrl-C reaches the supervisor alone, which then ends them in
order: the server first, that no request is cut by a dying learner, then the learner. A child whose supervisor is
gone ends itself (`follow_supervisor`).
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from stereorl.config import Config, flatten
from stereorl.errors import ProcessError

_PARENT = "STEREORL_SUPERVISOR"


@dataclass(frozen=True)
class Patience:
    """How long the supervisor waits for what, in seconds."""

    start_s: float = 180
    stop_s: float = 20
    first_backoff_s: float = 1
    longest_backoff_s: float = 30
    restarts: int = 5
    stable_s: float = 120  # alive for so long: earlier crashes are forgotten


@dataclass
class Child:
    """One supervised process and its history."""

    name: str
    command: list[str]
    log: Path
    process: subprocess.Popen[bytes] | None = None
    started: float = 0.0
    crashes: int = 0
    due: float | None = field(default=None)  # when a crashed child is started again

    @property
    def alive(self) -> bool:
        return self.process is not None and self.process.poll() is None


@dataclass(frozen=True)
class ServerAddress:
    """What a running server says about itself in home/run/serve.json."""

    pid: int
    host: str
    port: int

    @property
    def url(self) -> str:
        return f"http://{f'[{self.host}]' if ':' in self.host else self.host}:{self.port}"


def read_address(home: Path) -> ServerAddress | None:
    """The address of this home's server, or None when there is none or its process is gone."""
    try:
        data = json.loads((home / "run" / "serve.json").read_text(encoding="utf-8"))
        address = ServerAddress(int(data["pid"]), str(data["host"]), int(data["port"]))
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return None
    return address if process_alive(address.pid) else None


def process_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def log_tail(path: Path, lines: int = 20) -> str:
    """The last lines of a log, for an error message."""
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return f"({path} cannot be read)"
    return "\n".join(text.splitlines()[-lines:]) or f"({path} is empty)"


class Supervisor:
    """Starts `python -m stereorl serve|learn` with the given common arguments and keeps both alive."""

    def __init__(
        self,
        home: Path,
        arguments: Sequence[str],
        *,
        report: Callable[[str], None] = print,
        patience: Patience = Patience(),
        commands: Mapping[str, Sequence[str]] | None = None,
    ):
        self.home = home
        self.report = report
        self.patience = patience
        self.address: ServerAddress | None = None
        base = [sys.executable, "-m", "stereorl"]
        wanted = commands or {name: [*base, name, *arguments] for name in ("serve", "learn")}
        self.children = {
            name: Child(name, list(command), home / "logs" / f"{name}.log")
            for name, command in wanted.items()
        }

    def start(self, stop: threading.Event | None = None) -> str:
        """Start both, wait until the server answers, and return its URL ("" when `stop` is set first).

        Raises ProcessError, with the end of the log, when the server dies or does not answer in time.
        """
        running = read_address(self.home)
        if running is not None and _healthy(running.url):
            raise ProcessError(
                f"A server for {self.home} already runs at {running.url} (process {running.pid})."
            )
        (self.home / "logs").mkdir(parents=True, exist_ok=True)
        for child in self.children.values():
            self._spawn(child)
        self.address = self._await_server(time.monotonic() + self.patience.start_s, stop or threading.Event())
        return self.address.url if self.address else ""

    def tick(self) -> None:
        """Look after the children once; call it a few times a second. Raises ProcessError when one is hopeless."""
        for child in self.children.values():
            if child.alive:
                if child.crashes and time.monotonic() - child.started > self.patience.stable_s:
                    child.crashes = 0
            elif child.due is None:
                self._crashed(child)
            elif time.monotonic() >= child.due:
                self._spawn(child)

    def run(self, stop: threading.Event, poll_s: float = 0.3) -> None:
        """Until `stop` is set."""
        while not stop.wait(poll_s):
            self.tick()

    def alive(self, name: str) -> bool:
        return self.children[name].alive

    def stop(self, names: Sequence[str] = ("serve", "learn")) -> None:
        """End the children named, in order; one that does not go within `stop_s` is killed, and said so."""
        for child in (self.children[name] for name in names if name in self.children):
            if child.process is None:
                continue
            if child.alive:
                child.process.send_signal(signal.SIGTERM)
            try:
                child.process.wait(self.patience.stop_s)
            except subprocess.TimeoutExpired:
                self.report(f"{child.name} did not end within {self.patience.stop_s:g} s; killed.")
                child.process.kill()
                child.process.wait()
            child.process = None

    def _spawn(self, child: Child) -> None:
        command = list(child.command)
        if (
            child.name == "serve" and self.address is not None
        ):  # clients know this port; keep it over a restart
            command += ["--set", f"serve.port={self.address.port}"]
        environment = {
            "OMP_WAIT_POLICY": "PASSIVE",
            **os.environ,
            "PYTHONUNBUFFERED": "1",
            _PARENT: str(os.getpid()),
        }
        environment.pop("STEREORL_CONFIG", None)  # the arguments say everything
        with child.log.open("ab") as log:
            child.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env=environment,
            )
        child.started, child.due = time.monotonic(), None

    def _crashed(self, child: Child) -> None:
        assert child.process is not None
        child.crashes += 1
        how = describe_exit(child.process.returncode)
        if child.crashes > self.patience.restarts:
            raise ProcessError(
                f"{child.name} {how} and has done so {child.crashes} times; giving up. "
                f"The end of {child.log}:\n{log_tail(child.log)}"
            )
        pause = min(self.patience.first_backoff_s * 2 ** (child.crashes - 1), self.patience.longest_backoff_s)
        child.due = time.monotonic() + pause
        self.report(
            f"{child.name} {how}; restart {child.crashes} of {self.patience.restarts} in {pause:g} s."
        )

    def _await_server(self, deadline: float, stop: threading.Event) -> ServerAddress | None:
        child = self.children["serve"]
        assert child.process is not None
        while time.monotonic() < deadline:
            if not child.alive:
                how = describe_exit(child.process.returncode)
                raise ProcessError(
                    f"The server {how} while starting. The end of {child.log}:\n{log_tail(child.log)}"
                )
            address = read_address(self.home)
            if address is not None and address.pid == child.process.pid and _healthy(address.url):
                return address
            if stop.wait(0.1):
                return None
        raise ProcessError(
            f"Waited {self.patience.start_s:g} s for the server's /healthz in vain. "
            f"The end of {child.log}:\n{log_tail(child.log)}"
        )


def child_arguments(config: Config) -> list[str]:
    """Command-line arguments that give a child process exactly this configuration."""
    changed = flatten(config.model_dump(mode="json", exclude_defaults=True))
    changed.pop("home", None)
    arguments = ["--home", str(config.home_path)]
    for key, value in changed.items():
        arguments += ["--set", f"{key}={json.dumps(value)}"]
    return arguments


def describe_exit(code: int | None) -> str:
    """A return code in words."""
    if code is None:
        return "runs"
    if code < 0:
        return f"was ended by {signal.Signals(-code).name}"
    return f"ended with status {code}"


def follow_supervisor(poll_s: float = 1.0) -> None:
    """In a child: end by SIGTERM when the supervising process is gone. Does nothing without a supervisor."""
    parent = os.environ.get(_PARENT)
    if not parent or (os.getppid() != int(parent) and process_alive(int(parent))):
        return  # nobody supervises, or the mark was inherited from further up

    def watch() -> None:
        while os.getppid() == int(parent):
            time.sleep(poll_s)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, name="follow-supervisor", daemon=True).start()


def _healthy(url: str) -> bool:
    try:
        return httpx.get(f"{url}/healthz", timeout=2, trust_env=False).status_code == 200
    except httpx.HTTPError:
        return False
