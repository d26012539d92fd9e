"""The documentation is compared with the code: commands, settings, names of functions, links and examples."""

from __future__ import annotations

import importlib
import json
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import typer.main

from stereorl.cli.main import app
from stereorl.cli.reference import DOCUMENTS
from stereorl.config import Config, load_config

ROOT = Path(__file__).parent.parent
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])
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


@page
def test_python_examples_are_python_and_self_contained_ones_run(page: Path) -> None:
    for text in blocks(page, "python"):
        code = compile(text, str(page), "exec")
        if "OpenAI(" not in text:  # those need a server; the client's tests cover them
            exec(code, {})


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


def test_every_public_function_of_the_objective_is_in_the_table() -> None:
    table = (ROOT / "docs" / "equations.md").read_text(encoding="utf-8")
    for module in ("advantage", "kl"):
        code = importlib.import_module(f"stereorl.core.{module}")
        for name, value in vars(code).items():
            if getattr(value, "__module__", None) == code.__name__ and callable(value) and name[0] != "_":
                assert f"`{code.__name__}.{name}`" in table, f"{name} is missing from docs/equations.md"


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
