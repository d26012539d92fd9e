"""Each test gets a store of its own: an SQLite file, or, with STEREORL_TEST_POSTGRES=postgresql://..., a database on
that server (whose user must be allowed to create them)."""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa

from stereorl.store import Store
from stereorl.store.engine import make_engine
from tests.store.build import url_of

SERVER = os.environ.get("STEREORL_TEST_POSTGRES")


@pytest.fixture(scope="session")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty store, migrated once for all tests."""
    folder = tmp_path_factory.mktemp("template")
    Store.open(url_of(folder)).close()
    return folder / "stereorl.db"


@pytest.fixture
def url(tmp_path: Path, template: Path) -> Iterator[str]:
    if SERVER is None:
        shutil.copy(template, tmp_path)
        yield url_of(tmp_path)
        return
    name = f"stereorl_{uuid.uuid4().hex}"
    admin = make_engine(SERVER, create=False).execution_options(isolation_level="AUTOCOMMIT")
    with admin.connect() as connection:
        connection.exec_driver_sql(f"CREATE DATABASE {name}")
        yield sa.make_url(SERVER).set(database=name).render_as_string(hide_password=False)
        connection.exec_driver_sql(f"DROP DATABASE {name} WITH (FORCE)")
    admin.dispose()


@pytest.fixture
def store(url: str) -> Iterator[Store]:
    """An empty store; sound at the end of every test."""
    with Store.open(url) as opened:
        yield opened
        assert opened.integrity_check() == "ok"
