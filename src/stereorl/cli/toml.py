"""A configuration as TOML text that loads back, each value that is not a default with its source."""

from __future__ import annotations

import json
from typing import Any

from stereorl.config import Effective


def to_toml(effective: Effective) -> str:
    """Unset values are comments, for TOML has no null; sources follow their value as comments."""
    return "\n".join(_section(effective.config.model_dump(mode="json"), "", effective)) + "\n"


def _section(values: dict[str, Any], prefix: str, effective: Effective) -> list[str]:
    """The values of a section, then its subsections under their headings."""
    lines = [
        _line(name, value, f"{prefix}{name}", effective)
        for name, value in values.items()
        if not isinstance(value, dict)
    ]
    for name, value in values.items():
        if isinstance(value, dict):
            lines += ["", f"[{prefix}{name}]", *_section(value, f"{prefix}{name}.", effective)]
    return lines


def _line(name: str, value: Any, dotted: str, effective: Effective) -> str:
    source = effective.sources.get(dotted)
    note = f"  # {source}" if source else ""
    return f"# {name} is not set{note}" if value is None else f"{name} = {toml_value(value)}{note}"


def toml_value(value: Any) -> str:
    """Strings, numbers, booleans and lists: the JSON form is TOML, too."""
    return json.dumps(value, ensure_ascii=False)
