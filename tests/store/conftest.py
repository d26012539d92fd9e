from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from stereorl.store import Store
from tests.store.build import url_of


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """An empty store; sound at the end of every test."""
    with Store.open(url_of(tmp_path)) as opened:
        yield opened
        assert opened.integrity_check() == "ok"
