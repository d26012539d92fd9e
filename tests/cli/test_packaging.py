"""What a wheel would hold: the entry point exists, and every file that the code reads is packed."""

from __future__ import annotations

import importlib
import tomllib
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PACKAGE = ROOT / "src" / "stereorl"


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
