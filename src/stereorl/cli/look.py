"""Commands that only look: status, sessions, show, versions, config."""

from __future__ import annotations

from typing import Annotated

import typer

from stereorl.cli.options import ConfigFile, Home, Json, Model, Set, effective


def status(
    home: Home = None, config: ConfigFile = None, set_: Set = None, model: Model = None, json_: Json = False
) -> None:
    """Is it learning? Where every turn is, the score over time, the versions, the processes.

    Examples: `stereorl status`, `stereorl status --json | jq .funnel.dropped`
    """
    settings = effective(home, config, set_, model).config
    from stereorl.cli.open import opened, versions_of
    from stereorl.cli.status import gather, print_status
    from stereorl.cli.write import print_json

    with opened(settings) as store:
        found = gather(settings, store, versions_of(settings))
    print_json(found) if json_ else print_status(found)


def sessions(
    home: Home = None,
    config: ConfigFile = None,
    set_: Set = None,
    model: Model = None,
    session: Annotated[str | None, typer.Option(help="List the turns of this session instead.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="How many sessions, latest first.")] = 20,
    json_: Json = False,
) -> None:
    """List sessions, or one session's turns with their ids for `stereorl show`.

    Examples: `stereorl sessions`, `stereorl sessions --session 4fd1`
    """
    settings = effective(home, config, set_, model).config
    from stereorl.cli import listing
    from stereorl.cli.open import opened
    from stereorl.cli.write import print_json

    with opened(settings) as store:
        rows = listing.turns(store, session) if session else listing.sessions(store, limit)
    print_json(rows) if json_ else listing.print_rows(rows)


def show(
    turn: Annotated[str, typer.Argument(help="A turn's id, or the beginning of it.")],
    home: Home = None,
    config: ConfigFile = None,
    set_: Set = None,
    model: Model = None,
    table: Annotated[bool, typer.Option("--table", help="One row per token, with the figures.")] = False,
    json_: Json = False,
) -> None:
    """One turn: its reply token by token, coloured by advantage, with votes, hint and next state.

    Examples: `stereorl show 7c9e`, `stereorl show 7c9e --table`
    """
    settings = effective(home, config, set_, model).config
    from stereorl.cli import turn as views
    from stereorl.cli.open import opened
    from stereorl.cli.write import print_json

    with opened(settings) as store:
        detail = store.detail(store.find_turn(turn))
    tokens = views.tokens(settings, detail)
    print_json(views.as_dict(detail, tokens)) if json_ else views.print_turn(
        settings, detail, tokens, table=table
    )


def versions(
    home: Home = None, config: ConfigFile = None, set_: Set = None, model: Model = None, json_: Json = False
) -> None:
    """The policy's versions: when each was made, of what, and which one serves.

    Example: `stereorl versions`
    """
    settings = effective(home, config, set_, model).config
    from stereorl.cli import listing
    from stereorl.cli.open import versions_of
    from stereorl.cli.write import print_json

    rows = listing.versions(versions_of(settings))
    print_json(rows) if json_ else listing.print_rows(rows)


def config(home: Home = None, config: ConfigFile = None, set_: Set = None, model: Model = None) -> None:
    """Print the effective configuration as TOML, with the source of each value that is not a default.

    Example: `stereorl config --set learn.lr=1e-4 > stereorl.toml`
    """
    from stereorl.cli.toml import to_toml

    typer.echo(to_toml(effective(home, config, set_, model)), nl=False)
