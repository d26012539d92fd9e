"""Fixtures of the server's tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from stereorl.store.store import Store
from tests.serve.setting import ScriptedEngine, Setup, WordRenderer


@pytest.fixture
def setup(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Setup]:
    monkeypatch.delenv("STEREORL_API_KEY", raising=False)
    monkeypatch.delenv("STEREORL_CONFIG", raising=False)
    renderer = WordRenderer()
    with Store.open(f"sqlite:///{tmp_path / 'home' / 'stereorl.db'}") as store:
        yield Setup(tmp_path / "home", store, ScriptedEngine(renderer), renderer)


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"
