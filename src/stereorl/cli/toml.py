"""A configuration as TOML text that loads back, each value that is not a default with its source."""

from __future__ import annotations

import json
from typing import Any

from stereorl.config import Effective


def to_toml(effective: Effective) -> str:
    """Unset values are comments, for TOML has no null; sources follow their value as comments."""
    tree = effective.config.model_dump(mode="json")
    lines = [
        _line(name, value, name, effective) for name, value in tree.items() if not isinstance(value, dict)
    ]
    for section, values in tree.items():
        if isinstance(values, dict):
            lines += ["", f"[{section}]"]
            lines += [_line(name, value, f"{section}.{name}", effective) for name, value in values.items()]
    return "\n".join(lines) + "\n"


def _line(name: str, value: Any, dotted: str, effective: Effective) -> str:
    source = effective.sources.get(dotted)
    note = f"  # {source}" if source else ""
    return f"# {name} is not set{note}" if value is None else f"{name} = {toml_value(value)}{note}"


def toml_value(value: Any) -> str:
    """Strings, numbers, booleans and lists: the JSON form is TOML, too."""
    return json.dumps(value, ensure_ascii=False)
