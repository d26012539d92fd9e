"""`stereorl status`: gather the facts once, then print them; the JSON is the same facts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stereorl.cli.open import current_of
from stereorl.cli.write import duration, sparkline
from stereorl.config import Config
from stereorl.study.supervise import process_alive, read_address

if TYPE_CHECKING:
    from stereorl.store.records import Funnel
    from stereorl.store.store import Store
    from stereorl.store.versions import Versions

Facts = dict[str, Any]
_FEW = 8


def gather(config: Config, store: Store, versions: Versions) -> Facts:
    """Everything that status tells, as plain values."""
    funnel = store.funnel()
    steps = store.steps()
    scores = [{"at": at, "reward": reward, "turns": n} for at, reward, n in store.score_over_time(_FEW)]
    address = read_address(config.home_path)
    return {
        "home": str(config.home_path),
        "server": address.url if address else None,
        "learner": learner_pid(config.home_path),
        "funnel": asdict(funnel),
        "score": scores,
        "version": current_of(versions),
        "updates": {
            outcome: sum(step.outcome == outcome for step in steps)
            for outcome in ("published", "rejected", "abandoned")
        },
        "learning": verdict(config, funnel, [score["reward"] for score in scores]),
    }


def learner_pid(home: Path) -> int | None:
    """The process that learns for this home, or None."""
    try:
        pid = int((home / "run" / "learn.lock").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return pid if process_alive(pid) else None


def verdict(config: Config, funnel: Funnel, rewards: Sequence[float]) -> str:
    """Is it learning? One line that names the fact it rests on, or what is missing."""
    if not funnel.captured:
        return "Not yet: nothing was captured. Talk to it, for example with 'stereorl chat'."
    if not funnel.steps:
        ready = funnel.stages.get("ready", 0)
        return (
            f"Not yet: no update so far; {ready} of {config.learn.batch_size} samples are ready "
            f"(an update starts then, or once the oldest has waited {config.learn.max_wait_s:g} s)."
        )
    updates = f"{funnel.steps} update{'s' if funnel.steps > 1 else ''}"
    if len(rewards) < 2:
        return f"It trains: {updates}; too few verdicts yet to tell whether the score rises."
    change = rewards[-1] - rewards[0]
    moved = f"the mean reward went from {rewards[0]:+.2f} (first {_FEW} verdicts) to {rewards[-1]:+.2f} (last ones)"
    return f"{'Yes' if change > 0.1 else 'No sign of it'}: {moved} over {updates}."


def print_status(facts: Facts) -> None:
    """The facts on a terminal."""
    from rich.console import Console

    console = Console(highlight=False)

    def line(name: str, value: str) -> None:
        console.print(f"[bold]{name:<10}[/bold]", value.replace("[", r"\["), soft_wrap=True)

    line("learning?", facts["learning"])
    line("home", facts["home"])
    line("server", f"serves at {facts['server']}" if facts["server"] else "does not run")
    line("learner", f"runs (process {facts['learner']})" if facts["learner"] else "does not run")
    updates = facts["updates"]
    serves = "what serves is not known" if facts["version"] is None else f"{facts['version']} serves"
    line(
        "version",
        f"{serves}; {updates['published']} updates published, {updates['rejected']} rejected, "
        f"{updates['abandoned']} abandoned",
    )
    for name, value in funnel_lines(facts["funnel"]):
        line(name, value)
    if facts["score"]:
        rewards = [score["reward"] for score in facts["score"]]
        line(
            "score",
            f"{sparkline(rewards[-60:])}  {rewards[0]:+.2f} -> {rewards[-1]:+.2f} (mean reward, by {_FEW} verdicts)",
        )


def funnel_lines(funnel: Facts) -> list[tuple[str, str]]:
    """Captured -> judged -> hinted -> scored -> trained | dropped(reason), each in words."""
    rewards = {int(key): value for key, value in funnel["rewards"].items()}
    stages = ", ".join(
        f"{count} {_STAGES.get(name, name)}" for name, count in funnel["stages"].items() if count
    )
    drops, unscored = _reasons(funnel["dropped"]), _reasons(funnel["unscored"])
    again = funnel["replayed"]
    waited = funnel["oldest_waiting_s"]
    return [
        (
            "captured",
            f"{funnel['captured']} turns in {funnel['sessions']} sessions (and {funnel['side']} side turns)",
        ),
        (
            "judged",
            f"{funnel['judged']} ({rewards.get(1, 0)} good, {rewards.get(0, 0)} neutral, {rewards.get(-1, 0)} bad)",
        ),
        (
            "hinted",
            f"{funnel['hinted']}, of which {funnel['scored']} scored by the teacher"
            + (f", and {unscored} cannot be" if unscored else ""),
        ),
        (
            "trained",
            f"{funnel['trained']} in {funnel['steps']} updates"
            + (f", which drew trained turns {again} times again" if again else ""),
        ),
        (
            "waiting",
            f"{funnel['waiting']}{f': {stages}' if stages else ''}"
            + (f"; the oldest for {duration(waited)}" if waited else ""),
        ),
        ("dropped", f"{sum(funnel['dropped'].values())}{f': {drops}' if drops else ''}"),
    ]


def _reasons(counts: Facts) -> str:
    return ", ".join(f"{count} {reason}" for reason, count in sorted(counts.items()))


_STAGES = {
    "captured": "for what the user says next",
    "judge": "for the judge",
    "score": "for the teacher",
    "ready": "for an update",
    "signalless": "without a signal",
    "used": "in an update",
}
