"""The demo's picture: sessions, held-out prompts, updates. Needs the `plot` extra."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

from stereorl.study.report import DemoReport

_INK, _FIRST, _SECOND, _BAD = "#333333", "#9aa5b1", "#1f6f8b", "#c8553d"


def plot(report: DemoReport, path: Path) -> Path | None:
    """Write the picture and return its path; None when matplotlib is not installed."""
    if importlib.util.find_spec("matplotlib") is None:
        return None
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 3.6), dpi=130, layout="constrained")
    left, middle, right = figure.subplots(1, 3, width_ratios=(1.5, 1, 1.2))
    _sessions(left, report)
    _heldout(middle, report)
    _updates(right, report)
    for axes in (left, middle, right):
        axes.spines[["top", "right"]].set_visible(False)
        axes.title.set_fontsize(10)
    figure.savefig(path)
    return path


def _sessions(axes: Any, report: DemoReport) -> None:
    kept = [1.0 if session.first_kept else 0.0 for session in report.sessions]
    window = max(2, min(8, len(kept) // 3))
    moving = [
        sum(kept[max(0, i - window + 1) : i + 1]) / len(kept[max(0, i - window + 1) : i + 1])
        for i in range(len(kept))
    ]
    numbers = range(1, len(kept) + 1)
    axes.scatter(numbers, kept, s=16, color=[_SECOND if value else _BAD for value in kept], zorder=3)
    axes.plot(numbers, moving, color=_INK, linewidth=1.5, label=f"mean of the last {window}")
    axes.set(title="First reply of each training session", xlabel="session", ylim=(-0.08, 1.08))
    axes.set_yticks([0, 0.5, 1], ["broken", "0.5", "kept"])
    axes.legend(frameon=False, fontsize=8, loc="upper left", bbox_to_anchor=(0, 0.93))


def _heldout(axes: Any, report: DemoReport) -> None:
    for x, (evaluation, colour) in enumerate(((report.before, _FIRST), (report.after, _SECOND))):
        low, high = evaluation.interval
        rate = evaluation.pass_rate
        axes.bar(x, rate, width=0.6, color=colour)
        axes.errorbar(x, rate, yerr=[[rate - low], [high - rate]], color=_INK, capsize=4, linewidth=1)
        axes.annotate(
            f"{rate:.2f}", (x + 0.08, rate), (0, 4), textcoords="offset points", color=_INK, fontsize=9
        )
    axes.set_xticks(
        [0, 1], [f"before\n(version {report.before.version})", f"after\n(version {report.after.version})"]
    )
    axes.set(title=f"{len(report.before.replies)} held-out prompts", ylabel="preference kept", ylim=(0, 1.08))


def _updates(axes: Any, report: DemoReport) -> None:
    axes.set(title="Updates", xlabel="update", ylabel="mean reward of the batch", ylim=(-1.08, 1.08))
    axes.axhline(0, color=_FIRST, linewidth=0.8)
    for outcome, colour, marker in (("published", _SECOND, "o"), ("rejected", _BAD, "x")):
        points = [
            (number, step["metrics"]["reward_mean"])
            for number, step in enumerate(report.steps, start=1)
            if step["outcome"] == outcome and step["metrics"].get("reward_mean") is not None
        ]
        if points:
            axes.plot(
                *zip(*points, strict=True),
                color=colour,
                marker=marker,
                linewidth=1,
                markersize=5,
                label=outcome,
            )
            axes.legend(frameon=False, fontsize=8, loc="lower right")
