"""From a finished step to the version that serves, in an order that a crash cannot spoil.

    stage files ─▶ rename to v%06d ─▶ CURRENT ─▶ step marked in the store
    (swept)        (repair finishes  (repair      (done)
                    the step)         marks it)

CURRENT is moved only from the version that the step started from. If somebody rolled back or promoted meanwhile
the step is abandoned: its samples are ready again and the learner goes on from what serves.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stereorl import faults
from stereorl.learn.checkpoint import save_checkpoint
from stereorl.learn.gate import GateReport
from stereorl.learn.metrics import plain
from stereorl.learn.step import Trainer
from stereorl.policy.load import Loaded
from stereorl.store.records import Outcome
from stereorl.store.store import Store
from stereorl.store.versions import Manifest, Versions


@dataclass(frozen=True, slots=True)
class Result:
    """How a step ended. `serves` True: its version is CURRENT."""

    outcome: Outcome
    version: int | None
    serves: bool = False


class Publisher:
    """Publishes, rejects or abandons steps."""

    def __init__(
        self, *, store: Store, versions: Versions, trainer: Trainer, loaded: Loaded, keep_versions: int
    ):
        self._store = store
        self._versions = versions
        self._trainer = trainer
        self._loaded = loaded
        self._keep = keep_versions

    def publish(self, step_id: int, *, parent: int, report: GateReport, metrics: Mapping[str, Any]) -> Result:
        """Make the trainer's weights a version. Rejected ones get a number too, for inspection, and never serve."""
        stage = self._versions.stage()
        save_checkpoint(self._trainer, stage, optimizer=report.passed)
        faults.point("learn.staged")
        if self._versions.current() != parent:
            shutil.rmtree(stage, ignore_errors=True)
            return self.abandon(step_id, "another version was set to serve", metrics)
        version = self._versions.publish(stage, self._manifest(step_id, parent, report, metrics))
        faults.point("learn.published")
        serves = report.passed and self._versions.current() == parent
        if serves:
            self._versions.set_current(version)
        faults.point("learn.current")
        outcome: Outcome = "published" if report.passed else "rejected"
        self._store.finish_step(step_id, outcome, version=version, metrics=plain(metrics))
        faults.point("learn.marked")
        self._versions.prune_optimizer(self._keep)
        return Result(outcome, version, serves)

    def abandon(self, step_id: int, reason: str, metrics: Mapping[str, Any] | None = None) -> Result:
        """Let the step's samples go; they are ready again."""
        details = plain({**(metrics or {}), "reason": reason})
        self._store.finish_step(step_id, "abandoned", version=None, metrics=details)
        return Result("abandoned", None)

    def reject(self, step_id: int, reason: str, metrics: Mapping[str, Any] | None = None) -> Result:
        """Drop the step's samples, with nothing to show for them."""
        details = plain({**(metrics or {}), "reason": reason})
        self._store.finish_step(step_id, "rejected", version=None, metrics=details)
        return Result("rejected", None)

    def _manifest(
        self, step_id: int, parent: int, report: GateReport, metrics: Mapping[str, Any]
    ) -> Manifest:
        return Manifest(
            version=self._next_number(),
            parent=parent,
            step_id=step_id,
            created_at=time.time(),
            adapter=self._trainer.config.adapter,
            base_model=self._loaded.name,
            base_digest=self._loaded.digest,
            metrics=plain(metrics),
            status="published" if report.passed else "rejected",
        )

    def _next_number(self) -> int:
        """Free in the folder and in the store's record; the folder alone may have lost versions."""
        recorded = [step.version for step in self._store.steps(limit=100) if step.version is not None]
        return max([self._versions.next_number(), *(version + 1 for version in recorded)])


def current_changed_at(versions: Versions) -> float:
    """When CURRENT was last set; 0.0 when it never was."""
    file: Path = versions.root / "CURRENT"
    try:
        return file.stat().st_mtime
    except FileNotFoundError:
        return 0.0
