from __future__ import annotations

import pytest
import torch

from tests.learn.home import make_home


@pytest.fixture(autouse=True)
def one_thread():
    """Equal bits need an equal order of additions; a tiny model is also quickest so."""
    torch.set_num_threads(1)


@pytest.fixture
def home(tmp_path):
    home = make_home(tmp_path / "home")
    yield home
    home.store.close()
