"""The OpenAPI document is true: schemathesis finds no request that the server answers otherwise than it says."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.serve.setting import Setup

KEY = "s3cret"


def schemathesis(url: str, folder: Path, *options: str) -> str:
    """Run all checks in all phases, in positive and negative mode; returns the report."""
    (folder / "schemathesis.toml").write_text("", encoding="utf-8")  # no configuration but the options
    command = [sys.executable, "-m", "schemathesis.cli", "run", f"{url}/openapi.json"]
    command += ["--checks", "all", "--mode", "all", "--generation-deterministic"]
    command += ["--continue-on-failure", "--no-color", "--request-timeout", "20", *options]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
    return done.stdout


def test_every_operation(setup: Setup, tmp_path: Path) -> None:
    with setup.server() as url:
        report = schemathesis(url, tmp_path, "--max-examples", "10")
    assert "7 selected / 7 total" in report or "7 tested" in report, report
    assert setup.store.integrity_check() == "ok"
    assert setup.store.funnel().captured > 10  # it did get through to the engine


def test_every_operation_behind_a_key(setup: Setup, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STEREORL_API_KEY", KEY)
    with setup.server() as url:
        schemathesis(url, tmp_path, "--max-examples", "2", "-H", f"Authorization: Bearer {KEY}")


def document(setup: Setup) -> Any:
    with setup.server() as url:
        return httpx.get(f"{url}/openapi.json").json()


def test_the_document_names_every_error(setup: Setup) -> None:
    chat = document(setup)["paths"]["/v1/chat/completions"]["post"]
    assert set(chat["responses"]) >= {"200", "400", "401", "403", "405", "413", "415", "429", "500", "507"}
    assert "422" not in chat["responses"]
    assert chat["requestBody"]["required"]
    assert [p["name"].lower() for p in chat["parameters"]] == [
        "x-session-id",
        "x-turn-type",
        "x-session-done",
    ]
