"""The versions folder: published weights, and which of them serves.

    versions/v000001/{adapter files, trainer.pt, manifest.json}
    versions/CURRENT                                                a number; absent: 0, the base

A version appears by one rename of a finished, synced folder, so that a reader sees all of it or nothing. Its
manifest is written last: a folder with one is complete. A version never changes, but for its optimiser state
being pruned.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import logging
import os
import re
import shutil
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from stereorl.errors import VersionError

MANIFEST = "manifest.json"
OPTIMIZER = "trainer.pt"
_FOLDER = re.compile(r"v(\d{6,})")
_DIGITS = 18  # of a number that can be one
log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """What a version is and where it comes from. `files`: name -> sha256, filled in by `publish`."""

    version: int
    parent: int
    step_id: int | None
    created_at: float
    adapter: Literal["lora", "full"]
    base_model: str
    base_digest: str
    metrics: dict[str, Any]
    status: Literal["published", "rejected"]
    files: dict[str, str] = field(default_factory=dict)


class Versions:
    """Reads and writes the folder `root`. One process publishes; any number read."""

    def __init__(self, root: Path):
        self.root = Path(root)

    # --- which one serves ---

    def current(self) -> int:
        """The number that serves; 0: the base. VersionError when CURRENT names no whole version."""
        file = self.root / "CURRENT"
        try:
            text = file.read_text(encoding="utf-8").strip()
        except FileNotFoundError:
            return 0
        except (OSError, UnicodeDecodeError) as error:
            raise VersionError(
                f"{file} cannot be read ({error}). Set it with `stereorl rollback N`."
            ) from error
        if not text.isascii() or not text.isdigit() or len(text) > _DIGITS:
            raise VersionError(
                f"{file} holds '{text[:40]}', not a number. Set it with `stereorl rollback N`."
            )
        number = int(text)
        if number:
            self.manifest(number)
        return number

    def set_current(self, n: int, *, force: bool = False) -> None:
        """Let version `n` serve, atomically. VersionError when there is none, (without `force`) it was
        rejected, or CURRENT cannot be written, which then stays as it was.
        """
        if n:
            manifest = self.manifest(n)
            if manifest.status != "published" and not force:
                raise VersionError(f"Version {n} was rejected by the gate and is kept for inspection only.")
        aside = self.root / f".CURRENT-{os.getpid()}"
        try:
            self.root.mkdir(parents=True, exist_ok=True)
            with open(aside, "w", encoding="utf-8") as file:
                file.write(f"{n}\n")
                file.flush()
                os.fsync(file.fileno())
            os.replace(aside, self.root / "CURRENT")
            _sync_folder(self.root)
        except OSError as error:
            with suppress(OSError):
                aside.unlink()
            raise VersionError(f"{self.root / 'CURRENT'} cannot be written: {error.strerror}.") from error

    # --- what there is ---

    def path(self, n: int) -> Path | None:
        """The folder of version `n`; None for the base."""
        if n == 0:
            return None
        self.manifest(n)
        return self._folder(n)

    def manifest(self, n: int) -> Manifest:
        """VersionError when version `n` is missing or has no readable manifest; the base has none either."""
        if n == 0:
            raise VersionError("Version 0 is the base model; it has no manifest.")
        file = self._folder(n) / MANIFEST
        try:
            manifest = Manifest(**json.loads(file.read_text(encoding="utf-8")))
        except FileNotFoundError as error:
            raise VersionError(
                f"There is no version {n} in {self.root}. `stereorl versions` lists them."
            ) from error
        except (OSError, ValueError, TypeError) as error:
            raise VersionError(f"{file} is damaged ({error}). Roll back to another version.") from error
        if manifest.version != n:
            raise VersionError(f"{file} says it is version {manifest.version}. Do not rename versions.")
        return manifest

    def list(self) -> list[Manifest]:
        """All whole versions, published and rejected, oldest first. Broken ones are logged; see `broken`."""
        found = []
        for n in self._numbers():
            try:
                found.append(self.manifest(n))
            except VersionError as error:
                log.warning("%s", error)
        return found

    def broken(self) -> dict[int, str]:
        """Folders that are no whole version, and why."""
        faults = {}
        for n in self._numbers():
            try:
                self.manifest(n)
            except VersionError as error:
                faults[n] = str(error)
        return faults

    def find_step(self, step_id: int) -> Manifest | None:
        """The version that a step made; None when it made none."""
        return next((m for m in reversed(self.list()) if m.step_id == step_id), None)

    def next_number(self) -> int:
        return max(self._numbers(), default=0) + 1

    def verify(self, n: int) -> None:
        """Compare every file with its sha256 in the manifest. VersionError names those that differ or are
        missing. (The optimiser state may have been pruned.)
        """
        manifest = self.manifest(n)
        folder = self._folder(n)
        wrong = []
        for name, digest in manifest.files.items():
            file = folder / name
            if not file.is_file():
                wrong += [f"{name} is missing"] if name != OPTIMIZER else []
            elif _sha256(file) != digest:
                wrong.append(f"{name} has changed")
        if wrong:
            raise VersionError(f"Version {n} is damaged: {'; '.join(wrong)}. Roll back to another version.")

    # --- making one ---

    def stage(self) -> Path:
        """An empty folder on the same file system, in which a version is put together."""
        self.root.mkdir(parents=True, exist_ok=True)
        return Path(tempfile.mkdtemp(prefix=".stage-", dir=self.root))

    def publish(self, stage: Path, manifest: Manifest) -> int:
        """Turn a staged folder into version `manifest.version`, durably and atomically; CURRENT is not
        touched.
        """
        n = manifest.version
        target = self._folder(n)
        if n < 1 or target.exists():
            raise VersionError(f"Version {n} is taken. Use next_number().")
        files = [file for file in sorted(stage.rglob("*")) if file.is_file() and file != stage / MANIFEST]
        if not files:
            raise VersionError(f"{stage} is empty: there is nothing to publish.")
        digests = {file.relative_to(stage).as_posix(): _sha256(file) for file in files}
        whole = dataclasses.replace(manifest, files=digests)
        for file in files:
            _sync_file(file)
        text = json.dumps(dataclasses.asdict(whole), indent=1)
        (stage / MANIFEST).write_text(text + "\n", encoding="utf-8")
        _sync_file(stage / MANIFEST)
        for folder in {file.parent for file in files} | {stage}:
            _sync_folder(folder)
        os.rename(stage, target)
        _sync_folder(self.root)
        return n

    def sweep(self) -> None:
        """Remove what crashes left half-made. Only for the process that publishes, before it does."""
        if self.root.is_dir():
            for entry in self.root.iterdir():
                if entry.name.startswith(".stage-"):
                    shutil.rmtree(entry, ignore_errors=True)
                elif entry.name.startswith(".CURRENT-"):
                    entry.unlink(missing_ok=True)

    def prune_optimizer(self, keep: int) -> None:
        """Delete the optimiser states of all but the last `keep` versions and the current one."""
        numbers = self._numbers()
        spared = {*numbers[max(0, len(numbers) - keep) :], self.current()}
        for n in numbers:
            if n not in spared:
                (self._folder(n) / OPTIMIZER).unlink(missing_ok=True)

    def _folder(self, n: int) -> Path:
        return self.root / f"v{n:06d}"

    def _numbers(self) -> Sequence[int]:
        if not self.root.is_dir():
            return []
        matches = (_FOLDER.fullmatch(entry.name) for entry in self.root.iterdir())
        return sorted(int(match[1]) for match in matches if match)


def _sha256(file: Path) -> str:
    with open(file, "rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def _sync_file(file: Path) -> None:
    with open(file, "rb") as opened:
        os.fsync(opened.fileno())


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
