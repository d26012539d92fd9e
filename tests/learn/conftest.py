from __future__ import annotations

import pytest

from tests.learn.home import make_home


@pytest.fixture
def home(tmp_path):
    home = make_home(tmp_path / "home")
    yield home
    home.store.close()
