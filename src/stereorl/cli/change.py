"""Commands that change what is served or stored: rollback, promote, export, import, forget."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from stereorl.cli.options import ConfigFile, Home, Model, Set, effective
from stereorl.config import Config

Number = Annotated[int, typer.Argument(min=0, help="The version's number; 0 is the base.")]


def rollback(
    number: Number, home: Home = None, config: ConfigFile = None, set_: Set = None, model: Model = None
) -> None:
    """Serve an earlier version again and go on learning from there. Nothing is deleted.

    Example: `stereorl rollback 3`, or `stereorl rollback 0` for the base.
    """
    settings = effective(home, config, set_, model).config
    before = _let_serve(settings, number)
    instead = "" if before is None else f" instead of {before}"
    typer.echo(
        f"Version {number} serves{instead}. A running server swaps within {settings.serve.poll_s:g} s, "
        f"without a pause; the learner continues from {number}."
    )


def promote(
    number: Number,
    home: Home = None,
    config: ConfigFile = None,
    set_: Set = None,
    model: Model = None,
    force: Annotated[bool, typer.Option("--force", help="Your judgement over the gate's.")] = False,
) -> None:
    """Serve a kept version, a later one for example; with --force one that the gate rejected.

    Example: `stereorl promote 7`
    """
    settings = effective(home, config, set_, model).config
    _let_serve(settings, number, force=force)
    typer.echo(f"Version {number} serves. A running server swaps within {settings.serve.poll_s:g} s.")


def _let_serve(settings: Config, number: int, *, force: bool = False) -> int | None:
    """What served before, if that can be told. VersionError, and nothing changes, when `number` is damaged."""
    from stereorl.cli.open import current_of, versions_of

    found = versions_of(settings)
    before = current_of(found)
    if number:
        found.verify(number)
    found.set_current(number, force=force)
    return before


def export(
    path: Annotated[
        Path, typer.Argument(help="File to write; .parquet writes Parquet, anything else JSONL.")
    ],
    home: Home = None,
    config: ConfigFile = None,
    set_: Set = None,
    model: Model = None,
    session: Annotated[str | None, typer.Option(help="Only this session (JSONL).")] = None,
) -> None:
    """Write what was captured and learned from to a file.

    Examples: `stereorl export turns.jsonl`, `stereorl export turns.parquet`
    """
    settings = effective(home, config, set_, model).config
    from stereorl.cli.forget import full_id
    from stereorl.cli.open import opened
    from stereorl.errors import ConfigError
    from stereorl.store.transfer import export_jsonl, export_parquet

    with opened(settings) as store:
        if path.suffix != ".parquet":
            count = export_jsonl(store, path, full_id(store, session) if session else None)
        elif session is None:
            count = export_parquet(store, path)
        else:
            raise ConfigError("--session works with JSONL only; give a path that ends in .jsonl.")
    typer.echo(f"{count} turns written to {path}.")


def import_(
    path: Annotated[Path, typer.Argument(help="A file that `stereorl export` wrote as JSONL.")],
    home: Home = None,
    config: ConfigFile = None,
    set_: Set = None,
    model: Model = None,
) -> None:
    """Read turns from a JSONL file; turns that are already stored are skipped.

    Example: `stereorl import turns.jsonl --home ~/other`
    """
    settings = effective(home, config, set_, model).config
    from stereorl.store.store import Store
    from stereorl.store.transfer import import_jsonl

    settings.home_path.mkdir(parents=True, exist_ok=True)
    store = Store.open(settings.store_url)
    try:
        report = import_jsonl(store, path)
    finally:
        store.close()
    typer.echo(f"{report.imported} turns imported, {report.skipped} were there already.")
    for bad in report.bad:
        typer.echo(f"Line {bad.number} left out: {bad.reason}", err=True)
    if report.bad:
        raise typer.Exit(1)


def forget(
    session: Annotated[str, typer.Argument(help="A session's id, or the beginning of it.")],
    home: Home = None,
    config: ConfigFile = None,
    set_: Set = None,
    model: Model = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Delete a session from the store and say which versions learned from it.

    Example: `stereorl forget 4fd1`
    """
    settings = effective(home, config, set_, model).config
    from stereorl.cli.forget import describe, full_id
    from stereorl.cli.open import opened

    with opened(settings) as store:
        found = full_id(store, session)
        if not yes:
            typer.confirm(f"Delete session {found} for good?", abort=True)
        typer.echo(describe(store.forget(found)))
