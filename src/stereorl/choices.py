"""Tables from the names in a configuration to the classes behind them. Nothing is imported until it is asked for.

Adding a variant is one new file and one line here. A class of one's own needs no line: write `package.module:Class`
as the name.
"""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from stereorl.errors import ConfigError

Table = Mapping[str, str]

FUSIONS: dict[str, str] = {
    "advantage_sum": "stereorl.core.fusions.advantage_sum:AdvantageSum",
    "loss_sum": "stereorl.core.fusions.loss_sum:LossSum",
    "topk": "stereorl.core.fusions.topk:TopK",
    "route": "stereorl.core.fusions.route:Route",
}
ESTIMATORS: dict[str, str] = {
    "sampled": "stereorl.core.estimators:Sampled",
    "topk_clip": "stereorl.core.estimators:TopKClip",
    "topk_tail": "stereorl.core.estimators:TopKTail",
    "full": "stereorl.core.estimators:Full",
}
SCHEDULES: dict[str, str] = {
    "constant": "stereorl.core.schedule:Constant",
    "linear": "stereorl.core.schedule:Linear",
    "cosine": "stereorl.core.schedule:Cosine",
    "performance": "stereorl.core.schedule:Performance",
    "density": "stereorl.core.schedule:Density",
    "balance": "stereorl.core.schedule:Balance",
    "complementary": "stereorl.core.schedule:Complementary",
}
SCALES: dict[str, str] = {
    "none": "stereorl.core.scale:NoScale",
    "rms": "stereorl.core.scale:SignalRMS",
    "loss": "stereorl.core.scale:LossStd",
}
COMBINERS: dict[str, str] = {
    "sum": "stereorl.core.combine:Sum",
    "pcgrad": "stereorl.core.combine:PCGrad",
    "upgrad": "stereorl.core.combine:UPGrad",
}


def check_name(table: Table, name: str) -> str:
    """`name` if the table has it or it is an import path; else ValueError with the names nearest to it."""
    if name in table or ":" in name:
        return name
    near = difflib.get_close_matches(name, table, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]}? " if near else ""
    raise ValueError(
        f"'{name}' is none of {', '.join(table)}; {hint}A class of yours is package.module:Class"
    )


def find(table: Table, name: str) -> Any:
    """The class behind `name`. ConfigError when there is no such dataclass or its module cannot be imported."""
    try:
        module, _, attribute = table.get(check_name(table, name), name).partition(":")
        kind = getattr(importlib.import_module(module), attribute)
        if not (isinstance(kind, type) and is_dataclass(kind)):
            raise TypeError("it is no dataclass")
        return kind
    except (ValueError, TypeError, ImportError, AttributeError) as error:
        raise ConfigError(f"Cannot use '{name}': {error}.") from error


def build(table: Table, name: str, *settings: object, **given: object) -> Any:
    """An instance of the dataclass behind `name`, its fields filled as by `fill`."""
    return fill(find(table, name), *settings, **given)


def fill(kind: Any, *settings: object, **given: object) -> Any:
    """An instance of the dataclass `kind`; each field takes its value from `given`, else from the first of `settings`
    that has an attribute of that name, else its own default. ConfigError when they cannot be used together.
    """
    values: dict[str, object] = {}
    for field in fields(kind):
        source = next((s for s in settings if hasattr(s, field.name)), None)
        if field.init and field.name in given:
            values[field.name] = given[field.name]
        elif field.init and source is not None:
            values[field.name] = getattr(source, field.name)
    try:
        return kind(**values)
    except (ValueError, TypeError, ImportError) as error:
        raise ConfigError(f"{kind.__name__} cannot work so: {error}") from error
