"""The command line. Commands parse, import the heavy thing, and call it; nothing heavy is imported for `--help`."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable

import typer

from stereorl import __version__
from stereorl.cli import change, chat, look, run
from stereorl.errors import StereoError

app = typer.Typer(
    name="stereorl",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
    help="An agent that learns from being used: talk to it, correct it, and its next answers are better.",
    epilog="Start with `stereorl up`, then `stereorl chat` elsewhere; `stereorl status` says what it learned.",
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"stereorl {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: bool = typer.Option(
        False, "--version", callback=_version, is_eager=True, help="Print the version."
    ),
) -> None:
    pass


PANELS: dict[str, tuple[Callable[..., None], ...]] = {
    "Run": (run.up, run.serve, run.learn, chat.chat, run.demo, run.prepare),
    "Look": (look.status, look.sessions, look.show, look.versions, look.config),
    "Change": (change.rollback, change.promote, change.export, change.import_, change.forget),
}
for panel, commands in PANELS.items():
    for command in commands:
        app.command(command.__name__.rstrip("_"), rich_help_panel=panel)(command)


def main(arguments: list[str] | None = None) -> None:
    """Entry point. An error of ours or of the file system is one message on stderr and status 2; Ctrl-C is
    status 130.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # before anything imports torch
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal that cannot show a character shows "?"
    try:
        app(arguments)
    except StereoError as error:
        print(f"stereorl: {error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:  # `stereorl ... | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except OSError as error:  # a folder that is a file, cannot be written, or is full
        place = f"{error.filename}: " if error.filename else ""
        print(f"stereorl: {place}{error.strerror or error}.", file=sys.stderr)
        sys.exit(2)
