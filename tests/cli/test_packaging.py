"""What a wheel would hold: the entry point exists, and every file that the code reads is packed."""

from __future__ import annotations

import importlib
import re
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

from tests.test_layers import imports, modules

ROOT = Path(__file__).parent.parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PACKAGE = ROOT / "src" / "stereorl"


def normal(name: str) -> str:
    return name.lower().replace("_", "-")


def test_the_entry_point_exists() -> None:
    module, name = PROJECT["project"]["scripts"]["stereorl"].split(":")
    assert callable(getattr(importlib.import_module(module), name))


def test_every_data_file_is_packed() -> None:
    globs = PROJECT["tool"]["setuptools"]["package-data"]["stereorl"]
    packed = {path for glob in globs for path in PACKAGE.glob(glob)}
    files = {path for path in PACKAGE.rglob("*") if path.is_file() and "__pycache__" not in path.parts}
    assert {path for path in files if path.suffix not in (".py", ".pyi")} <= packed


def test_every_folder_with_code_is_a_package() -> None:
    folders = {path.parent for path in PACKAGE.rglob("*.py") if "__pycache__" not in path.parts}
    assert all((folder / "__init__.py").exists() for folder in folders), "setuptools would leave it out"


def test_every_package_that_is_imported_is_declared() -> None:
    project = PROJECT["project"]
    extras = [item for items in project["optional-dependencies"].values() for item in items]
    declared = {normal(re.split(r"[\[<>=]", item)[0]) for item in [*project["dependencies"], *extras]}
    names = {name: {normal(package) for package in found} for name, found in packages_distributions().items()}
    names["pydantic_core"] = {"pydantic"}  # one release names the other's exact version
    offenders = [
        f"{path.relative_to(PACKAGE)} imports {top}"
        for path in modules()
        for _, name in imports(path)
        if (top := name.split(".")[0]) not in {*sys.stdlib_module_names, "stereorl"}
        if not names.get(top, {normal(top)}) & declared
    ]
    assert not offenders, "\n".join(offenders)
