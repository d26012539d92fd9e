"""The demo in small, for real: two processes, HTTP, gradient steps, a swap; then the commands that look at its home."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from stereorl.cli.demo import settings_of
from stereorl.config import load_config
from stereorl.errors import ConfigError
from stereorl.study.demo import QUICK, DemoSettings, run_demo

KEYS = {"captured", "judged", "hinted", "trained", "updates", "version", "before", "after"}


def stereorl(*arguments: object, timeout_s: float = 800) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "stereorl", *map(str, arguments)]
    environment = {**os.environ, "COLUMNS": "150"}
    return subprocess.run(
        command, capture_output=True, text=True, timeout=timeout_s, env=environment, check=False
    )


def test_a_home_with_an_earlier_run_is_refused(tmp_path: Path) -> None:
    (tmp_path / "versions").mkdir()
    with pytest.raises(ConfigError, match="holds an earlier run"):
        run_demo(load_config(None, {"home": str(tmp_path)}).config, QUICK, progress=None)  # type: ignore[arg-type]


def test_what_is_not_chosen_stays() -> None:
    assert settings_of(False, seed=1, sessions=None) == DemoSettings(seed=1)
    assert settings_of(True, sessions=9).sessions == 9
    assert settings_of(True, sessions=9).batch_size == QUICK.batch_size


@pytest.mark.e2e
@pytest.mark.model
@pytest.mark.timeout(900)
def test_the_quick_demo_closes_the_loop(tmp_path: Path) -> None:
    home = tmp_path / "home"
    ran = stereorl("demo", "--quick", "--home", home)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    summary = json.loads(ran.stdout.splitlines()[-1])
    assert set(summary) == KEYS
    assert summary["updates"] >= 1
    assert summary["version"] >= 1
    assert summary["trained"] >= QUICK.batch_size
    assert summary["captured"] >= summary["judged"] >= summary["trained"]
    record = json.loads((home / "report.json").read_text())
    assert record["problems"] == []
    assert record["after"]["retention"] > record["before"]["retention"] - 0.5
    assert (home / "plot.png").exists()
    _look(home, summary)


def _look(home: Path, summary: dict[str, Any]) -> None:
    facts = json.loads(stereorl("status", "--home", home, "--json").stdout)
    assert facts["version"] == summary["version"]
    assert facts["server"] is None
    assert facts["learner"] is None
    funnel = facts["funnel"]
    assert funnel["captured"] == funnel["trained"] + funnel["waiting"] + sum(funnel["dropped"].values())
    session = json.loads(stereorl("sessions", "--home", home, "--json").stdout)[-1]["session"]
    turns = json.loads(stereorl("sessions", "--home", home, "--json", "--session", session).stdout)
    assert turns
    shown = json.loads(stereorl("show", turns[0]["turn"], "--home", home, "--json").stdout)
    assert "".join(token["text"] for token in shown["tokens"]).startswith(shown["reply"]["content"][:10])
