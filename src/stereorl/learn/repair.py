"""Exactly once across crashes: what the last learner left open is finished or let go before anything new begins.

An open step whose version is on disk was trained, and is marked so; the version serves if nothing else was set to
serve since it was made. An open step without a version was not trained; its samples are ready again.
"""

from __future__ import annotations

import logging

from stereorl.learn.publish import current_changed_at
from stereorl.store.records import OpenStep
from stereorl.store.store import Store
from stereorl.store.versions import Manifest, Versions

log = logging.getLogger("stereorl.learn")


def repair(store: Store, versions: Versions) -> int:
    """Close every open step and sweep half-made folders; returns how many steps were open. May be run again."""
    steps = store.open_steps()
    for step in steps:
        manifest = versions.find_step(step.step_id)
        if manifest is None or manifest.parent != step.parent_version:
            store.finish_step(step.step_id, "abandoned", version=None, metrics={"reason": "repaired"})
            log.warning(
                "Step %d was cut short; its %d samples are ready again.", step.step_id, len(step.turn_ids)
            )
        else:
            _finish(store, versions, step, manifest)
    versions.sweep()
    return len(steps)


def _finish(store: Store, versions: Versions, step: OpenStep, manifest: Manifest) -> None:
    untouched = versions.current() == manifest.parent and current_changed_at(versions) <= manifest.created_at
    if manifest.status == "published" and untouched:
        versions.set_current(manifest.version)
    store.finish_step(step.step_id, manifest.status, version=manifest.version, metrics=manifest.metrics)
    log.warning(
        "Step %d was cut short after it made version %d; marked %s.",
        step.step_id,
        manifest.version,
        manifest.status,
    )
