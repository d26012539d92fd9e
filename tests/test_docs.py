"""The documentation is compared with the code: commands, settings, names of functions, links and examples."""

from __future__ import annotations

import importlib
import inspect
import json
import math
import pkgutil
import re
import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, get_args

import pytest
import typer.main

from stereorl import choices, core
from stereorl.cli.main import app
from stereorl.cli.reference import DOCUMENTS
from stereorl.config import Config, JudgeName, flatten, load_config

ROOT = Path(__file__).parent.parent
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])
FILE = re.compile(r"# (\w+\.py)\n")
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)

page = pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))


def blocks(page: Path, language: str) -> list[str]:
    return [text for name, text in BLOCK.findall(page.read_text(encoding="utf-8")) if name == language]


def commands() -> dict[str, Any]:
    root: Any = typer.main.get_command(app)
    return dict(root.commands)


@pytest.mark.parametrize("name", sorted(DOCUMENTS))
def test_generated_pages_equal_what_the_code_says(name: str) -> None:
    assert (ROOT / "docs" / name).read_text(encoding="utf-8") == DOCUMENTS[name](), "Run: make docs"


@page
def test_commands_and_options_exist(page: Path) -> None:
    known = commands()
    text = page.read_text(encoding="utf-8")
    for line in re.findall(
        r"\bstereorl ((?:[a-z]+)(?: [^`\n#|]*)?)", "\n".join([*blocks(page, ""), *_spans(text)])
    ):
        name, *rest = line.split()
        assert name in known, f"no command 'stereorl {name}'"
        options = {option for parameter in known[name].params for option in parameter.opts}
        for word in rest:
            if word.startswith("--"):
                assert word.split("=")[0] in options, f"'stereorl {name}' has no option {word}"


def _spans(text: str) -> list[str]:
    return re.findall(r"`(stereorl [^`]+)`", BLOCK.sub("", text))


@page
def test_make_targets_exist(page: Path) -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in re.findall(r"(?:^|`)make (\w+)", page.read_text(encoding="utf-8"), re.MULTILINE):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), f"no target 'make {target}'"


@page
def test_links_resolve(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
        if "://" not in target:
            assert (page.parent / target).exists(), f"{target} does not exist"


@page
def test_toml_examples_load(page: Path, tmp_path: Path) -> None:
    for number, text in enumerate(blocks(page, "toml")):
        file = tmp_path / f"{number}.toml"
        file.write_text(text, encoding="utf-8")
        assert load_config(file).sources.keys() >= set(_keys(tomllib.loads(text)))


def _keys(tree: dict[str, Any], prefix: str = "") -> list[str]:
    found: list[str] = []
    for name, value in tree.items():
        found += _keys(value, f"{prefix}{name}.") if isinstance(value, dict) else [f"{prefix}{name}"]
    return found


@pytest.fixture
def written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Path], None]]:
    """Writes the files that a page shows (blocks that begin with `# name.py`), importable until the test ends."""
    monkeypatch.syspath_prepend(tmp_path)
    before = dict(choices.FUSIONS)

    def write(page: Path) -> None:
        for text in blocks(page, "python"):
            if name := FILE.match(text):
                (tmp_path / name[1]).write_text(text, encoding="utf-8")

    yield write
    choices.FUSIONS.clear()
    choices.FUSIONS.update(before)
    for name in tmp_path.glob("*.py"):
        sys.modules.pop(name.stem, None)


@page
def test_python_examples_are_python_and_self_contained_ones_run(
    page: Path, written: Callable[[Path], None]
) -> None:
    written(page)
    for text in blocks(page, "python"):
        code = compile(text, str(page), "exec")
        if "OpenAI(" not in text:  # those need a server; the client's tests cover them
            exec(code, {"__name__": "__main__"})


@pytest.mark.parametrize(
    "settings", [{"fusion": "magnitude:Magnitude"}, {"schedule": "warmup:Warmup", "steps": 1}]
)
def test_the_classes_that_the_page_adds_train(
    settings: dict[str, Any], written: Callable[[Path], None]
) -> None:
    from tests.learn.tiny import mixed, same, tiny_trainer, weights

    written(ROOT / "docs" / "extending.md")
    trainer = tiny_trainer(**settings)
    before = weights(trainer)
    metrics = trainer.step(mixed()).metrics
    assert not same(before, weights(trainer))
    assert math.isfinite(metrics["loss"])
    assert metrics["w_eval"] == (0.0 if "schedule" in settings else 0.3)
    assert trainer.step(mixed()).metrics["w_eval"] == 0.3


@page
def test_dotted_names_exist(page: Path) -> None:
    for name in re.findall(r"`(stereorl(?:\.\w+)+)`", page.read_text(encoding="utf-8")):
        if name != "stereorl.db" and not name.endswith(".toml"):
            assert _resolves(name), f"{name} does not exist"


def _resolves(name: str) -> bool:
    parts = name.split(".")
    for cut in range(len(parts), 0, -1):
        try:
            found: Any = importlib.import_module(".".join(parts[:cut]))
        except ModuleNotFoundError:
            continue
        return all((found := getattr(found, part, None)) is not None for part in parts[cut:])
    return False


@page
def test_settings_named_in_the_text_exist(page: Path) -> None:
    sections = "|".join(name for name in Config.model_fields if name not in ("home", "preset"))
    known = set(_keys(Config().model_dump()))
    for name in re.findall(rf"`((?:{sections})\.[a-z]\w+)`", page.read_text(encoding="utf-8")):
        assert name in known or page.name == "crash-safety.md", f"no setting {name}"


# Equations: the table holds every public function and class of core but these, which compute nothing.
NO_EQUATION = {
    *("Aggregation", "Baseline", "ClipMode", "KLKind", "SupportKind"),  # names of choices
    *("Combiner", "Estimator", "Fusion", "Scale", "Schedule", "Vocabulary"),  # protocols
    *("DenseVocabulary", "Directive", "Needs", "Objective", "Progress", "SignalSizes", "Streams", "Support"),
    *("Weights", "Stateless"),
}


def equations() -> dict[str, str]:
    """Function -> source, from the rows of docs/equations.md."""
    text = (ROOT / "docs" / "equations.md").read_text(encoding="utf-8")
    rows = [re.split(r"(?<!\\)\|", line)[1:-1] for line in text.splitlines() if line.startswith("|")]
    found: dict[str, str] = {}
    for row in rows:
        assert len(row) == 4, f"a row without four cells: {row}"
        for name in re.findall(r"`(stereorl[\w.]+)`", row[2]):
            assert name not in found, f"{name} has two rows"
            found[name] = row[3]
    return found


def public_of_core() -> set[str]:
    """What `stereorl.core` exports, and what its modules hold beside that, by the shortest name to import it by."""
    found = {f"stereorl.core.{name}" for name in core.__all__}
    for module in pkgutil.walk_packages(core.__path__, "stereorl.core."):
        code = importlib.import_module(module.name)
        for name, value in vars(code).items():
            own = getattr(value, "__module__", None) == module.name
            if own and callable(value) and name[0] != "_" and name not in core.__all__:
                found.add(f"{module.name}.{name}")
    return {name for name in found if ".shapes." not in name and name.split(".")[-1] not in NO_EQUATION}


def test_every_public_function_and_class_of_core_is_in_the_table() -> None:
    of_core = {name for name in equations() if name.startswith("stereorl.core.")}
    assert of_core == public_of_core()
    assert NO_EQUATION - {"Stateless"} <= set(core.__all__), "an exception for nothing"


@pytest.mark.parametrize("name", sorted(equations()))
def test_the_source_in_the_table_is_the_one_that_the_docstring_names(name: str) -> None:
    source, said = equations()[name], _documented(name)
    papers, years = re.findall(r"\d{4}\.\d{5}", source), re.findall(r"\b(?:19|20)\d\d\b(?!\.)", source)
    assert [paper for paper in papers + years if paper not in said] == []
    assert [paper for paper in re.findall(r"\d{4}\.\d{5}", _source_line(name)) if paper not in source] == []


def _documented(name: str) -> str:
    """The docstring, with those of its module that it says it is like."""
    module = importlib.import_module(_found(name).__module__)
    doc = inspect.getdoc(_found(name)) or ""
    others = (getattr(module, other, None) for other in re.findall(r"as `(\w+)`", doc))
    return " ".join([doc, *(inspect.getdoc(other) or "" for other in others if other)])


def _source_line(name: str) -> str:
    match = re.search(r"^Source.*?(?=\n\w+:|\n\n|\Z)", inspect.getdoc(_found(name)) or "", re.M | re.S)
    return match.group() if match else ""


def _found(name: str) -> Any:
    module, _, attribute = name.rpartition(".")
    return getattr(importlib.import_module(module), attribute)


def test_the_readme_lists_every_choice_with_the_default_first() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    tables = {
        "objective.fusion": list(choices.FUSIONS),
        "objective.estimator": ["auto", *choices.ESTIMATORS],
        "weights.schedule": list(choices.SCHEDULES),
        "objective.scale": list(choices.SCALES),
        "objective.combine": list(choices.COMBINERS),
        "signals.judge": list(get_args(JudgeName)),
        **{f"signals.{name}": _literals(f"signals.{name}") for name in ("hinter", "teacher")},
    }
    defaults = flatten(Config().model_dump())
    for setting, names in tables.items():
        (row,) = re.findall(rf"^\|[^|]*\| `{setting}` \|(.*)\|$", text, re.MULTILINE)
        assert re.findall(r"`(\w+)`", row) == names
        assert defaults[setting] in (names[0], names[:1]), f"the default of {setting} is not first"


def _literals(setting: str) -> list[str]:
    section, name = setting.split(".")
    return list(get_args(type(getattr(Config(), section)).model_fields[name].annotation))


def test_every_crash_point_in_the_code_is_in_the_page() -> None:
    page = (ROOT / "docs" / "crash-safety.md").read_text(encoding="utf-8")
    sources = (ROOT / "src").rglob("*.py")
    for name in {
        name for path in sources for name in re.findall(r'\bpoint\("([\w.]+)"\)', path.read_text("utf-8"))
    }:
        assert f"`{name}`" in page, f"{name} is missing from docs/crash-safety.md"


def test_every_dependency_is_explained() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    page = (ROOT / "docs" / "dependencies.md").read_text(encoding="utf-8")
    wanted = [
        *project["dependencies"],
        *(item for items in project["optional-dependencies"].values() for item in items),
    ]
    for name in {re.split(r"[\[<>=]", item)[0] for item in wanted} - {"stereorl"}:
        assert re.search(rf"\b{re.escape(name)}\b", page), f"{name} is missing from docs/dependencies.md"


def test_what_is_installed_is_pinned() -> None:
    pins = (ROOT / "constraints.txt").read_text(encoding="utf-8").split()
    assert "torch==2.13.0" in pins
    assert all(re.fullmatch(r"[\w.-]+==[\w.]+", pin) for pin in pins), (
        "a pin carries a local suffix or a marker"
    )


def test_the_readme_prints_what_the_records_say() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    records = sorted((ROOT / "docs" / "results").glob("demo-seed*/report.json"))
    assert len(records) == 3
    for file in records:
        record = json.loads(file.read_text(encoding="utf-8"))
        before, after = record["before"], record["after"]
        low, high = after["interval"]
        row = (
            f"| {record['settings']['seed']} | {before['pass_rate']:.2f} "
            f"| {after['pass_rate']:.2f} [{low:.2f}, {high:.2f}] "
            f"| {before['words']:.1f} → {after['words']:.1f} "
            f"| {before['relevance']:.2f} → {after['relevance']:.2f} "
            f"| {before['retention']:.2f} → {after['retention']:.2f} |"
        )
        assert row in readme, f"README lacks {row}"
