"""Opening: new, existing, foreign, damaged, newer, unwritable; the schema and its migrations."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import sqlite3
import stat
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory

from stereorl.errors import StoreError
from stereorl.store import NewSession, Store, schema
from stereorl.store.engine import make_engine
from stereorl.store.migrate import SCRIPTS, current_revision, migrate
from tests.store.build import BAD, HINT, fill, make_ready, make_turn, same_turn, score_of, url_of
from tests.store.worker import open_and_check


def test_a_new_store_and_the_same_one_again(tmp_path: Path) -> None:
    url = url_of(tmp_path / "new" / "folder")
    turn = make_turn()
    with Store.open(url) as store:
        store.put([NewSession("s0", 1.0, "new"), turn])
        assert store.schema_version() == schema.HEAD
    with Store.open(url, create=False) as store:
        assert same_turn(store.turn("t0"), turn)
        assert store.integrity_check() == "ok"
    file = tmp_path / "new" / "folder" / "stereorl.db"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600  # it holds conversations


def test_each_connection_is_durable_private_and_checked(store: Store) -> None:
    with store._engine.connect() as connection:
        if connection.dialect.name != "sqlite":
            pytest.skip("SQLite's settings")
        names = ("journal_mode", "synchronous", "foreign_keys", "secure_delete")
        found = [connection.exec_driver_sql(f"PRAGMA {name}").scalar() for name in names]
    assert found == ["wal", 2, 1, 1]


def test_migrations_and_tables_agree(store: Store) -> None:
    assert ScriptDirectory(str(SCRIPTS)).get_current_head() == schema.HEAD
    with store._engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        assert compare_metadata(context, schema.metadata) == []


THIRD = """
import sqlalchemy as sa
from alembic import op
revision, down_revision = "0003", "0002"
def upgrade():
    op.add_column("turn", sa.Column("extra", sa.Text()))
    op.execute("UPDATE turn SET extra = turn_id")
    {more}
"""


def _scripts(folder: Path, more: str = "") -> Path:
    scripts = shutil.copytree(SCRIPTS, folder / "scripts", ignore=shutil.ignore_patterns("__pycache__"))
    (scripts / "versions" / "m0003_third.py").write_text(THIRD.format(more=more))
    return scripts


def test_an_existing_file_is_migrated_with_its_data(tmp_path: Path) -> None:
    with Store.open(url_of(tmp_path)) as store:
        store.put([NewSession("s0", 1.0, "new"), make_turn()])
        migrate(store._engine, create=False, scripts=_scripts(tmp_path), head="0003")
        with store._engine.connect() as connection:
            assert current_revision(connection) == "0003"
            assert connection.exec_driver_sql("SELECT extra FROM turn").scalars().all() == ["t0"]
    with pytest.raises(StoreError, match=r"newer StereoRL \(schema 0003"):
        Store.open(url_of(tmp_path))


def _first_version(folder: Path) -> None:
    """A database as the first migration made it, with every kind of row it had."""
    (folder / "now").mkdir()
    with Store.open(url_of(folder / "now")) as store:
        make_ready(store, ["trained", "ready"])
        fill(store, ["scored", "score"], "s1")
        for key in ("scored", "score"):
            store.record_judgement(key, BAD, [HINT])
        store.record_teacher_score(score_of(store.turn("scored")))
        claim = store.claim(1, parent_version=0)
        assert claim is not None
        store.finish_step(claim.step_id, "published", version=1, metrics={})
    old = make_engine(url_of(folder), create=True)
    migrate(old, create=True, head="0001")
    old.dispose()
    with sqlite3.connect(folder / "stereorl.db") as raw:
        raw.execute("ATTACH ? AS now", (str(folder / "now" / "stereorl.db"),))
        for (table,) in raw.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall():
            if table not in ("alembic_version", "sqlite_sequence"):
                columns = ", ".join(row[1] for row in raw.execute(f'PRAGMA table_info("{table}")'))
                raw.execute(f'INSERT INTO "{table}" ({columns}) SELECT {columns} FROM now."{table}"')
        assert "top_ids" not in {row[1] for row in raw.execute("PRAGMA table_info(teacher_score)")}
    raw.close()


def test_a_store_of_the_first_version_opens_and_goes_on(tmp_path: Path) -> None:
    _first_version(tmp_path)
    with Store.open(url_of(tmp_path), create=False) as store, Store.open(url_of(tmp_path / "now")) as same:
        assert store.schema_version() == schema.HEAD
        assert store.integrity_check() == "ok"
        for key in ("trained", "ready", "scored", "score"):
            assert same_turn(store.turn(key), same.turn(key))
            assert store.detail(key).stage == same.detail(key).stage
        kept = store.detail("scored").teacher_scores[0]
        assert (kept.log_probs.tobytes(), kept.top_ids) == (
            score_of(same.turn("scored")).log_probs.tobytes(),
            None,
        )
        store.record_unscored("score", "hint_over_context")
        claim = store.claim(8, parent_version=1, replay=4)
        assert claim is not None
        assert [s.turn.turn_id for s in claim.samples] == ["ready", "scored", "score"]
        assert [s.turn.turn_id for s in claim.replayed] == ["trained"]


def test_a_migration_that_fails_leaves_the_store_as_it_was(tmp_path: Path) -> None:
    scripts = _scripts(tmp_path, more="raise RuntimeError('half-way')")
    with Store.open(url_of(tmp_path)) as store:
        with pytest.raises(RuntimeError, match="half-way"):
            migrate(store._engine, create=False, scripts=scripts, head="0003")
        with store._engine.connect() as connection:
            assert current_revision(connection) == "0002"
            assert "extra" not in {c["name"] for c in sa.inspect(connection).get_columns("turn")}


def test_processes_that_open_a_new_store_at_once(tmp_path: Path) -> None:
    spawn = multiprocessing.get_context("spawn")
    results: multiprocessing.Queue[str] = spawn.Queue()
    workers = [spawn.Process(target=open_and_check, args=(url_of(tmp_path), results)) for _ in range(2)]
    for worker in workers:
        worker.start()
    assert [results.get(timeout=60) for _ in workers] == ["ok"] * 2
    for worker in workers:
        worker.join(30)


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"no store at .* Start `stereorl up`"):
        Store.open(url_of(tmp_path), create=False)
    assert not (tmp_path / "stereorl.db").exists()


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("nonsense", "no database URL"),
        ("mysql://localhost/x", "'mysql' is not supported"),
        ("sqlite://", "Name a file"),
        ("sqlite:///:memory:", "Name a file"),
        ("sqlite:////dev/null/x/y.db", "cannot be written: Not a directory"),
        ("sqlite:////dev", "cannot be written: Is a directory"),
    ],
)
def test_urls_that_cannot_be(url: str, message: str) -> None:
    with pytest.raises(StoreError, match=message):
        Store.open(url)


def test_a_file_that_is_no_database(tmp_path: Path) -> None:
    (tmp_path / "stereorl.db").write_text("Dear diary, " * 500)
    with pytest.raises(StoreError, match=r"is not an SQLite database. Move it away"):
        Store.open(url_of(tmp_path))


def test_a_database_of_something_else(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "stereorl.db") as other:
        other.execute("CREATE TABLE recipe (name TEXT)")
    other.close()
    with pytest.raises(StoreError, match=r"something else \(tables recipe\)"):
        Store.open(url_of(tmp_path))


def test_damage_is_named(tmp_path: Path) -> None:
    with Store.open(url_of(tmp_path)) as store:
        store.put([NewSession("s0", 1.0, "new"), *(make_turn(f"t{k}") for k in range(50))])
    file = tmp_path / "stereorl.db"
    pages = file.read_bytes()
    file.write_bytes(pages[:4096] + b"\xff" * (len(pages) - 4096))
    with pytest.raises(StoreError, match=r"is damaged. Stop StereoRL, keep a copy"):
        Store.open(url_of(tmp_path))
    file.write_bytes(pages[:-4096] + b"\xff" * 4096)
    with Store.open(url_of(tmp_path)) as store:
        assert store.integrity_check() != "ok"


def test_drift_of_the_derived_rows_is_named(tmp_path: Path) -> None:
    with Store.open(url_of(tmp_path)) as store:
        store.put([NewSession("s0", 1.0, "new"), make_turn()])
        with store._engine.begin() as connection:
            connection.exec_driver_sql("UPDATE sample_state SET stage = 'ready'")
            connection.exec_driver_sql("UPDATE session_state SET open = 0")
        faults = store.integrity_check().splitlines()
    assert faults[0] == "Turn t0 waits in 'ready' where the facts say 'captured'."
    assert faults[1].startswith("Session s0 is on record as")


def _as_nobody(act: Callable[[], object]) -> str:
    """What `act` raises when it has no superuser's rights."""
    reader, writer = os.pipe()
    with warnings.catch_warnings(action="ignore"):
        child = os.fork()
    if child == 0:
        try:
            if os.getuid() == 0:
                os.setuid(65534)
            act()
            os.write(writer, b"nothing")
        except BaseException as error:
            os.write(writer, f"{type(error).__name__}: {error}".encode())
        finally:
            os._exit(0)
    os.close(writer)
    os.waitpid(child, 0)
    with os.fdopen(reader) as pipe:
        return pipe.read()


def test_read_only_folder_and_file() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        Store.open(url_of(folder)).close()
        file = folder / "stereorl.db"
        file.chmod(0o444)
        folder.chmod(0o555)
        assert "cannot be written: Permission denied. Give this user" in _as_nobody(
            lambda: Store.open(url_of(folder))
        )
        file.chmod(0o666)
        assert "is read-only, and SQLite writes its log" in _as_nobody(lambda: Store.open(url_of(folder)))
        missing = url_of(folder / "sub")
        assert "cannot be written: Permission denied" in _as_nobody(lambda: Store.open(missing))
        folder.chmod(0o755)


def test_the_store_does_not_import_torch() -> None:
    code = "import sys, stereorl.store, stereorl.store.transfer; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_locked_store_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stereorl.store.engine.BUSY_TIMEOUT_S", 0.05)
    Store.open(url_of(tmp_path)).close()
    other = sqlite3.connect(tmp_path / "stereorl.db", isolation_level=None)
    with Store(make_engine(url_of(tmp_path), create=False)) as store:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreError, match="is locked: another process"):
            store.put([NewSession("s0", 1.0, "new")])
        assert store.sessions() == []  # reading goes on
        other.execute("ROLLBACK")
        store.put([NewSession("s0", 1.0, "new")])
    other.close()
