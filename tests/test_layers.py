"""The arrows of the layers, read off the imports: downwards only, no cycle, nothing heavy where it must not be."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from stereorl import choices

SOURCE = Path(__file__).parent.parent / "src" / "stereorl"

ALLOWED: dict[str, set[str]] = {
    "errors": set(),
    "faults": set(),
    "choices": {"errors"},
    "config": {"choices", "errors"},
    "core": set(),
    "data": {"core", "errors"},
    "store": {"data", "errors", "faults"},
    "policy": {"data", "core", "errors", "config"},
    "signals": {"policy", "data", "core", "errors", "config"},
    "learn": {"signals", "policy", "store", "data", "core", "errors", "config", "choices", "faults"},
    "serve": {"policy", "store", "data", "errors", "config", "faults"},
    "study": {"serve", "learn", "signals", "policy", "store", "data", "core", "errors", "config"},
    "cli": {
        "study",
        "serve",
        "learn",
        "signals",
        "policy",
        "store",
        "data",
        "core",
        "errors",
        "config",
        "__init__",
    },
    "__main__": {"cli"},
    "__init__": set(),
}
HEAVY = {"torch", "transformers", "peft", "matplotlib", "accelerate", "pyarrow"}
# the parts that must start fast or run without a model; all but the command line's entry are whole layers
LIGHT = (
    "errors.py",
    "faults.py",
    "choices.py",
    "config.py",
    "data",
    "store",
    "cli",
    "__init__.py",
    "__main__.py",
)


def modules() -> list[Path]:
    return sorted(path for path in SOURCE.rglob("*.py") if "__pycache__" not in path.parts)


def layer(path: Path) -> str:
    """The layer of a file: its folder under the package, or the module's own name at the top."""
    parts = path.relative_to(SOURCE).parts
    return parts[0] if len(parts) > 1 else path.stem


def imports(path: Path, *, top_level_only: bool = False) -> Iterator[tuple[int, str]]:
    """(line, dotted name) of each import; relative ones are resolved, `if TYPE_CHECKING` blocks count as arrows."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    nodes = _at_import_time(tree) if top_level_only else ast.walk(tree)
    package = ("stereorl", *path.relative_to(SOURCE).parent.parts)
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(package[: len(package) - node.level + 1]) if node.level else ""
            module = ".".join(part for part in (base, node.module) if part)
            yield node.lineno, module
            if module == "stereorl":  # from stereorl import config
                yield from ((node.lineno, f"stereorl.{alias.name}") for alias in node.names)


def _at_import_time(tree: ast.AST) -> Iterator[ast.AST]:
    """What runs when the module is imported: not the bodies of functions, not `if TYPE_CHECKING`."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            continue
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        yield node
        yield from _at_import_time(node)


def arrows(path: Path) -> Iterator[tuple[int, str]]:
    """(line, layer) of each import of one of our own modules from another layer."""
    layers = {layer(module) for module in modules()}
    for line, name in imports(path):
        parts = name.split(".")
        if parts[0] == "stereorl" and len(parts) > 1 and parts[1] in layers and parts[1] != layer(path):
            yield line, parts[1]


def test_every_file_belongs_to_a_known_layer() -> None:
    assert {layer(path) for path in modules()} <= set(ALLOWED)


def test_imports_point_downwards_only() -> None:
    offenders = [
        f"{path.relative_to(SOURCE)}:{line} imports {target}"
        for path in modules()
        for line, target in arrows(path)
        if target not in ALLOWED.get(layer(path), set())
    ]
    assert not offenders, "\n".join(offenders)


def test_the_allowed_arrows_have_no_cycle() -> None:
    done: list[str] = []
    while len(done) < len(ALLOWED):
        free = [name for name, below in ALLOWED.items() if name not in done and below <= set(done)]
        assert free, f"A cycle among {sorted(set(ALLOWED) - set(done))}"
        done += free


def test_modules_of_one_layer_have_no_cycle() -> None:
    """Import-time arrows between files: a cycle there breaks as soon as someone imports in another order."""
    names = {
        ".".join(("stereorl", *path.relative_to(SOURCE).with_suffix("").parts)): path for path in modules()
    }
    graph = {
        name: {
            target for _, target in imports(path, top_level_only=True) if target in names and target != name
        }
        for name, path in names.items()
    }
    while graph:
        free = [name for name, below in graph.items() if not below & graph.keys()]
        assert free, f"A cycle among {sorted(graph)}"
        for name in free:
            del graph[name]


def test_nothing_heavy_is_imported_where_it_must_start_fast() -> None:
    offenders = [
        f"{path.relative_to(SOURCE)}:{line} imports {name}"
        for path in modules()
        if path.relative_to(SOURCE).parts[0] in LIGHT
        for line, name in imports(path, top_level_only=True)
        if name.split(".")[0] in HEAVY
    ]
    assert not offenders, "\n".join(offenders)


def test_core_knows_no_configuration_and_logs_nothing() -> None:
    offenders = [
        f"{path.relative_to(SOURCE)}:{line} imports {name}"
        for path in modules()
        if layer(path) == "core"
        for line, name in imports(path)
        if name.split(".")[0] in {"logging", "os", "pathlib", "pydantic", "sqlalchemy"}
    ]
    assert not offenders, "\n".join(offenders)


def compared_names(path: Path) -> Iterator[tuple[int, str]]:
    """(line, name) of each name from the tables of `choices` that a branch of this file asks for."""
    tables = (choices.FUSIONS, choices.ESTIMATORS, choices.SCHEDULES, choices.SCALES, choices.COMBINERS)
    names = {name for table in tables for name in table}
    classes = {target.rpartition(":")[2] for table in tables for target in table.values()}
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, (ast.Compare, ast.match_case)):
            asked = [n.value for n in ast.walk(node) if isinstance(n, ast.Constant)]
            yield from ((getattr(node, "lineno", 0), name) for name in asked if name in names)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "isinstance":
            asked = [n.id for n in ast.walk(node) if isinstance(n, ast.Name)]
            yield from ((node.lineno, name) for name in asked if name in classes)


def test_the_learner_has_no_branch_on_the_name_of_an_algorithm() -> None:
    offenders = [
        f"{path.relative_to(SOURCE)}:{line} asks for '{name}'"
        for path in modules()
        if layer(path) in {"learn", "core"}
        for line, name in compared_names(path)
        if (path.name, name) != ("advantage.py", "none")  # a baseline, not a scale
    ]
    assert not offenders, "\n".join(offenders)


@pytest.mark.parametrize(
    "text",
    [
        "if config.fusion == 'route':\n    pass",
        "x = 1 if name in ('pcgrad', 'upgrad') else 2",
        "match name:\n    case 'cosine':\n        pass",
        "if isinstance(fusion, LossSum):\n    pass",
    ],
)
def test_the_walk_itself_sees_a_branch(text: str, tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text(text)
    assert list(compared_names(tmp_path / "a.py"))


def test_no_module_is_called_utils() -> None:
    offenders = [
        str(path) for path in SOURCE.rglob("*") if path.stem in {"utils", "util", "helpers", "misc", "common"}
    ]
    assert not offenders, "\n".join(offenders)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("import torch", {"torch"}),
        ("def f():\n    import torch", set()),
        ("if TYPE_CHECKING:\n    import torch", set()),
        ("try:\n    import torch\nexcept ImportError:\n    pass", {"torch"}),
        ("class A:\n    import torch", {"torch"}),
    ],
)
def test_the_walk_itself_sees_what_runs_at_import(
    text: str, found: set[str], tmp_path: Path, monkeypatch
) -> None:
    monkeypatch.setitem(globals(), "SOURCE", tmp_path)
    (tmp_path / "a.py").write_text(text)
    assert {name for _, name in imports(tmp_path / "a.py", top_level_only=True)} == found
