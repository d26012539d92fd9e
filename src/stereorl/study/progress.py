"""What the demo shows while it runs: a live panel on a terminal, plain lines anywhere else."""

from __future__ import annotations

import threading
import time
from types import TracebackType

from rich.console import Console
from rich.live import Live
from rich.table import Table

from stereorl.store.records import Funnel
from stereorl.study.user import SessionResult


class Progress:
    """Safe to call from several threads. `every_s`: how often a line is printed where there is no terminal."""

    def __init__(self, console: Console, *, sessions: int, every_s: float = 10):
        self._console = console
        self._sessions = sessions
        self._every_s = every_s
        self._lock = threading.Lock()
        self._start = time.monotonic()
        self._printed = self._start
        self._phase = "Starting"
        self._results: list[SessionResult] = []
        self._funnel: Funnel | None = None
        self._version = 0
        self._live = (
            Live(console=console, auto_refresh=False, transient=True) if console.is_terminal else None
        )

    def __enter__(self) -> Progress:
        self._start = self._printed = time.monotonic()
        if self._live:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live:
            self._live.stop()

    def say(self, text: str) -> None:
        """A line that stays."""
        self._console.print(f"{self._elapsed():>6}  {text}", markup=False, highlight=False, soft_wrap=True)

    def phase(self, name: str) -> None:
        self._phase = name
        if self._live is None:
            self.say(name)
        else:
            self._draw()

    def session(self, result: SessionResult) -> None:
        """A session has ended."""
        with self._lock:
            self._results.append(result)

    def update(self, funnel: Funnel, version: int) -> None:
        if version != self._version and version:
            self.say(f"Version {version} is published and goes into service.")
        self._funnel, self._version = funnel, version
        if self._live:
            self._draw()
        elif time.monotonic() - self._printed >= self._every_s:
            self._printed = time.monotonic()
            self.say("; ".join(f"{name} {value}" for name, value in self._facts()))

    def _facts(self) -> list[tuple[str, str]]:
        with self._lock:
            results = list(self._results)
        recent = results[-8:]
        facts = [("sessions", f"{len(results)} of {self._sessions}")]
        if recent:
            kept = sum(result.first_kept for result in recent)
            facts.append(
                (
                    "first reply kept, of the last 8" if len(results) > 8 else "first reply kept",
                    f"{kept} of {len(recent)}",
                )
            )
        if self._funnel:
            rewards = self._funnel.rewards
            facts += [
                ("rewards", f"{rewards.get(1, 0)} up, {rewards.get(-1, 0)} down"),
                ("hints", str(self._funnel.hinted)),
                ("trained", f"{self._funnel.trained} of {self._funnel.captured} turns"),
                ("updates", str(self._funnel.steps)),
                ("version served", str(self._version)),
            ]
        return facts

    def _draw(self) -> None:
        table = Table.grid(padding=(0, 2))
        table.add_row(self._elapsed(), f"[bold]{self._phase}[/bold]")
        for name, value in self._facts():
            table.add_row("", f"{name}: {value}")
        assert self._live is not None
        self._live.update(table, refresh=True)

    def _elapsed(self) -> str:
        seconds = int(time.monotonic() - self._start)
        return f"{seconds // 60}:{seconds % 60:02d}"
