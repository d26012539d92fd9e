"""Bringing a database to the newest schema. Any number of processes may try at once: one does it, the others
wait.
"""

from __future__ import annotations

from pathlib import Path

import sqlalchemy as sa

from stereorl.errors import StoreError
from stereorl.store.engine import reading, where, writing
from stereorl.store.schema import HEAD, metadata

SCRIPTS = Path(__file__).parent / "migrations"
_LOCK = 0x57E12E0  # PostgreSQL: an arbitrary number that all our processes lock


def current_revision(connection: sa.Connection) -> str | None:
    """The schema's revision; None for a database without a store."""
    if not sa.inspect(connection).has_table("alembic_version"):
        return None
    revision: str | None = connection.execute(sa.text("SELECT version_num FROM alembic_version")).scalar()
    return revision


def migrate(engine: sa.Engine, *, create: bool, scripts: Path = SCRIPTS, head: str = HEAD) -> None:
    """Upgrade to `head` in one transaction. StoreError for a foreign database or one from a newer StereoRL."""
    with reading(engine) as connection:
        if current_revision(connection) == head:
            return
    with writing(engine) as connection:
        if connection.dialect.name == "postgresql":
            connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_LOCK)))
        revision = current_revision(connection)
        if revision == head:
            return
        if revision is None:
            _check_empty(connection, create=create)
        _upgrade(connection, revision, scripts, head)


def _check_empty(connection: sa.Connection, *, create: bool) -> None:
    tables = set(sa.inspect(connection).get_table_names())
    place = where(connection.engine)
    if tables & set(metadata.tables) or (tables and connection.dialect.name == "sqlite"):
        raise StoreError(
            f"{place} is a database of something else (tables {', '.join(sorted(tables)[:5])}). "
            "Name another one with `store.url`."
        )
    if not create:
        raise StoreError(f"{place} holds no store yet. Start `stereorl up` once, or check `store.url`.")


def _upgrade(connection: sa.Connection, revision: str | None, scripts: Path, head: str) -> None:
    from alembic import command  # a tenth of a second, and needed once in the life of a store
    from alembic.config import Config
    from alembic.script import ScriptDirectory

    config = Config()
    config.set_main_option("script_location", str(scripts).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    config.attributes["connection"] = connection
    known = {script.revision for script in ScriptDirectory.from_config(config).walk_revisions()}
    if revision is not None and revision not in known:
        raise StoreError(
            f"{where(connection.engine)} was written by a newer StereoRL (schema {revision}; this knows {head}). "
            "Upgrade StereoRL, or name another store with `store.url`."
        )
    command.upgrade(config, head)
