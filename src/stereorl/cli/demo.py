"""Joins the demo's settings with the user's configuration, runs it and shows the outcome."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console

from stereorl.config import load_config
from stereorl.study.demo import QUICK, DemoSettings, run_demo
from stereorl.study.plot import plot
from stereorl.study.progress import Progress
from stereorl.study.report import print_report


def settings_of(quick: bool, **chosen: Any) -> DemoSettings:
    """The demo's settings with what the user chose; None leaves the default."""
    return replace(QUICK if quick else DemoSettings(), **{k: v for k, v in chosen.items() if v is not None})


def show_demo(file: Path | None, given: dict[str, Any], settings: DemoSettings, *, as_json: bool) -> bool:
    """Run, print the table, the paths and (last) the JSON line; False when the loop did not do its job."""
    known = load_config(file, given)
    wanted = {key: value for key, value in settings.overrides().items() if key not in known.sources}
    config = load_config(file, {**wanted, **given}).config
    console = Console()
    report = run_demo(config, settings, progress=Progress(console, sessions=settings.sessions))
    print_report(report, console)
    picture = plot(report, report.home / "plot.png")
    console.print(f"Record: {report.home / 'report.json'}", soft_wrap=True, highlight=False)
    console.print(
        f"Plot:   {picture or 'not drawn: pip install matplotlib'}", soft_wrap=True, highlight=False
    )
    console.print(f"Look inside: stereorl status --home {report.home}", soft_wrap=True, highlight=False)
    for problem in report.problems:
        console.print(
            f"The loop did not do its job: {problem}", style="bold red", markup=False, soft_wrap=True
        )
    if as_json:
        print(json.dumps(report.summary()), flush=True)
    return not report.problems
