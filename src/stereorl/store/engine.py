"""Opening a database, transactions on it, and the translation of its errors into StoreErrors that say what to
do.

SQLite: WAL, so that reading and writing do not block each other; synchronous=FULL, so that a committed turn
survives a power cut; every write transaction begins IMMEDIATE, so that two writers queue instead of failing
half-way; secure_delete, so that what is forgotten is overwritten. Nothing here knows a table.
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy import event, exc
from sqlalchemy.dialects import postgresql, sqlite

from stereorl.errors import StoreError

BUSY_TIMEOUT_S = 30.0
Row = Mapping[str, Any]


def make_engine(url: str, *, create: bool) -> sa.Engine:
    """An engine for `url`; for SQLite, also the file and its folder. StoreError says what is wrong with
    either.
    """
    try:
        parsed = sa.make_url(url)
    except exc.ArgumentError as error:
        raise StoreError(
            f"'{url}' is no database URL. Use sqlite:////path/to/file.db or postgresql://..."
        ) from error
    if parsed.get_backend_name() == "postgresql":
        return _make_postgres(parsed)
    if parsed.get_backend_name() != "sqlite":
        raise StoreError(f"'{parsed.get_backend_name()}' is not supported. Use an SQLite file or PostgreSQL.")
    return _make_sqlite(parsed, create=create)


def _make_postgres(url: sa.URL) -> sa.Engine:
    if url.drivername == "postgresql":
        url = url.set(drivername="postgresql+psycopg")
    try:
        return sa.create_engine(url, pool_pre_ping=True, isolation_level="READ COMMITTED")
    except ModuleNotFoundError as error:
        raise StoreError("PostgreSQL needs its driver: pip install 'stereorl[postgres]'.") from error


def _make_sqlite(url: sa.URL, *, create: bool) -> sa.Engine:
    if not url.database or url.database == ":memory:":
        raise StoreError(
            "A store in memory cannot be shared between server and learner. Name a file: sqlite:////path.db"
        )
    path = Path(url.database)
    _prepare_file(path, create=create)
    engine = sa.create_engine(url, connect_args={"timeout": BUSY_TIMEOUT_S}, pool_size=16, max_overflow=48)
    event.listen(engine, "connect", _on_connect)
    event.listen(engine, "begin", _on_begin)
    return engine


def _prepare_file(path: Path, *, create: bool) -> None:
    """The file exists afterwards, for its owner only: it holds conversations."""
    if not path.exists() and not create:
        raise StoreError(
            f"There is no store at {path}. Start `stereorl up` once, or check `home` and `store.url`."
        )
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
    except OSError as error:
        raise StoreError(
            f"The store {path} cannot be written: {error.strerror}. Give this user write access to the file "
            "and its folder, or choose another place with `home` or `store.url`."
        ) from error
    if not os.access(path.parent, os.W_OK | os.X_OK):
        raise StoreError(
            f"The folder {path.parent} is read-only, and SQLite writes its log beside the store. Give this "
            "user write access to it, or choose another place with `home` or `store.url`."
        )


def _on_connect(connection: sqlite3.Connection, _record: Any) -> None:
    connection.isolation_level = None  # transactions are ours: the driver would begin them late and DEFERRED
    _set_wal(connection)
    for pragma in ("synchronous=FULL", "foreign_keys=ON", "secure_delete=ON"):
        connection.execute(f"PRAGMA {pragma}").close()


def _set_wal(connection: sqlite3.Connection) -> None:
    """Switching a new file to WAL does not honour the busy timeout when two processes do it at once: retry."""
    deadline = time.monotonic() + BUSY_TIMEOUT_S
    while True:
        try:
            connection.execute("PRAGMA journal_mode=WAL").close()
            return
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() > deadline:
                raise
            time.sleep(0.01)


def _on_begin(connection: sa.Connection) -> None:
    write = connection.get_execution_options().get("write", False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if write else "BEGIN")


@contextmanager
def reading(engine: sa.Engine) -> Iterator[sa.Connection]:
    """A transaction that sees one state of the store throughout."""
    with translated(engine), engine.connect() as connection, connection.begin():
        yield connection


@contextmanager
def writing(engine: sa.Engine) -> Iterator[sa.Connection]:
    """A transaction that commits as a whole at the end of the block, or not at all."""
    with translated(engine), engine.connect().execution_options(write=True) as connection, connection.begin():
        yield connection


@contextmanager
def translated(engine: sa.Engine) -> Iterator[None]:
    """Database errors become StoreErrors; everything else propagates."""
    try:
        yield
    except exc.DBAPIError as error:
        raise StoreError(explain(error, where(engine))) from error
    except sqlite3.Error as error:  # from the connect hook
        raise StoreError(explain(error, where(engine))) from error
    except exc.TimeoutError as error:
        raise StoreError(f"No connection to {where(engine)} became free: {error}") from error


def where(engine: sa.Engine) -> str:
    """The file, or the URL without its password."""
    if engine.dialect.name == "sqlite":
        return str(engine.url.database)
    return engine.url.render_as_string(hide_password=True)


def is_busy(error: StoreError) -> bool:
    """True when the store could not be had in time, so that trying again at once is no use."""
    return "is locked" in str(error)


# The beginning of SQLite's name for an error -> what happened to {0} and what to do.
_SQLITE = {
    "SQLITE_FULL": "The disk that holds {0} is full, so nothing was written. Free some space; then it goes on.",
    "SQLITE_BUSY": "{0} is locked: another process has been writing for over {1:.0f} s. See what holds it.",
    "SQLITE_READONLY": "{0} is read-only. Give this user write access to the file and its folder, or choose "
    "another place with `home` or `store.url`.",
    "SQLITE_CANTOPEN": "{0} cannot be opened. Check that its folder exists and this user may write there.",
    "SQLITE_NOTADB": "{0} is not an SQLite database. Move it away, or name another file with `store.url`.",
    "SQLITE_CORRUPT": "{0} is damaged. Stop StereoRL, keep a copy, then restore a backup or an export.",
    "SQLITE_IOERR": "The disk under {0} failed while reading or writing. Check it (`dmesg`, mounts).",
    "SQLITE_CONSTRAINT_FOREIGNKEY": "A record refers to a session or turn that {0} lacks (forgotten?).",
}


def explain(error: exc.DBAPIError | sqlite3.Error, place: str) -> str:
    """What happened, where, and what to do about it; the driver's own words in brackets."""
    original: Any = error.orig if isinstance(error, exc.DBAPIError) else error
    name = getattr(original, "sqlite_errorname", None) or ""
    for prefix, text in _SQLITE.items():
        if name.startswith(prefix):
            return f"{text.format(place, BUSY_TIMEOUT_S)} [{original}]"
    if isinstance(error, exc.DBAPIError) and error.connection_invalidated:
        return f"The connection to {place} was lost. Check that the database server is up. [{original}]"
    return f"The store {place} failed: {original}"


def insert_missing(connection: sa.Connection, table: sa.Table, rows: Iterable[Row]) -> int:
    """Insert `rows` but those whose primary or unique key is there already; returns how many went in."""
    values = list(rows)
    if not values:
        return 0
    statement = insert_ignore(table, connection.dialect.name)
    counted = {"preserve_rowcount": True}  # which is else lost when the database returns a generated key
    return connection.execute(
        statement, values if len(values) > 1 else values[0], execution_options=counted
    ).rowcount


def insert_ignore(table: sa.Table, dialect: str) -> sa.Insert:
    """INSERT ... ON CONFLICT DO NOTHING in the words of `dialect`."""
    if dialect == "postgresql":
        return postgresql.insert(table).on_conflict_do_nothing()
    return sqlite.insert(table).on_conflict_do_nothing()
