"""Every public name of core is used by a test here, so that a new one without a test fails."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import pytest

from stereorl import core

# only what others are annotated with: the protocols and the literals
TYPES = {"Aggregation", "Baseline", "ClipMode", "KLKind", "SupportKind"} | {
    name for name in core.__all__ if getattr(getattr(core, name), "_is_protocol", False)
}


@cache
def used() -> set[str]:
    """Names that the tests beside this file use; an import alone is no use."""
    trees = [ast.parse(path.read_text(encoding="utf-8")) for path in Path(__file__).parent.glob("test_*.py")]
    nodes = [node for tree in trees for node in ast.walk(tree)]
    return {node.id for node in nodes if isinstance(node, ast.Name)}


@pytest.mark.parametrize("name", sorted(set(core.__all__) - TYPES))
def test_a_test_uses(name):
    assert name in used(), f"no test in tests/core uses {name}"


def test_what_core_exports_is_all_that_it_imports():
    imported = {
        name
        for name, value in vars(core).items()
        if getattr(value, "__module__", "").startswith("stereorl.core")
    }
    assert imported == set(core.__all__) - {"Aggregation", "Baseline", "ClipMode", "KLKind", "SupportKind"}
