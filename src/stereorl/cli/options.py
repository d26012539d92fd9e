"""Options that every command shares, and what they mean."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Annotated, Any

import typer

from stereorl.config import Effective, load_config
from stereorl.errors import ConfigError

Home = Annotated[
    Path | None,
    typer.Option(
        "--home",
        help="Folder of the store, the versions and the logs. Default: $STEREORL_HOME or ~/.stereorl.",
    ),
]
ConfigFile = Annotated[
    Path | None, typer.Option("--config", help="TOML file with settings. Default: $STEREORL_CONFIG, if set.")
]
Set = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="KEY=VALUE", help="One setting, for example learn.lr=1e-4. May be repeated."
    ),
]
Model = Annotated[
    str | None, typer.Option("--model", help="'embedded', a model folder, or a Hugging Face hub name.")
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON for scripts.")]


def effective(home: Path | None, file: Path | None, sets: list[str] | None, model: str | None) -> Effective:
    """The configuration that these options give."""
    return load_config(file, overrides(home, sets, model))


def overrides(home: Path | None, sets: list[str] | None, model: str | None) -> dict[str, Any]:
    """The options as dotted settings; the named options win over `--set`."""
    found = dict(parse_setting(text) for text in sets or ())
    if home is not None:
        found["home"] = str(home)
    if model is not None:
        found["model.name"] = model
    return found


def parse_setting(text: str) -> tuple[str, Any]:
    """`learn.lr=1e-4` -> ("learn.lr", 0.0001). The value is TOML; what is not valid TOML is taken as plain text."""
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise ConfigError(f"'--set {text}' is not KEY=VALUE, for example --set learn.lr=1e-4.")
    try:
        parsed = tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        parsed = value.strip()
    return key.strip(), parsed
