"""Invariants 4 and 5: SIGKILL at every named point of a turn's and of an update's life, then look at the store."""

from __future__ import annotations

from collections import Counter

import pytest

from stereorl.store.store import Store
from stereorl.store.versions import Versions
from tests.e2e.client import Ledger, hold_sessions
from tests.e2e.processes import Home, wait_for

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

SERVE_POINTS = [
    "serve.received:4",
    "serve.generating:4",
    "serve.generated:4",
    "serve.before_commit:4",
    "store.before_commit:3",
    "store.after_commit:3",
    "serve.after_commit:4",
    "serve.before_done:4",
    "serve.after_done:4",
]
LEARN_POINTS = [
    "learn.judged.before:2",
    "learn.judged.after:2",
    "learn.scored.before",
    "learn.scored.after:2",
    "learn.claimed",
    "learn.stepped",
    "learn.staged",
    "learn.published",
    "learn.current",
    "learn.marked",
]


def test_kill_9_of_the_server_loses_no_acknowledged_turn(home: Home) -> None:
    ledger = Ledger()
    for point in SERVE_POINTS:
        server = home.start_server(kill_at=point)
        hold_sessions(home.url(), ledger, tag=point, count=4)
        server.expect_killed(seconds=30)
    with home.server() as url:  # and it still serves
        before = len(ledger.entries)
        hold_sessions(url, ledger, tag="last", count=2)
        assert len(ledger.entries) == before + 4

    store = Store.open(f"sqlite:///{home.path / 'stereorl.db'}")
    assert store.integrity_check() == "ok"
    assert len(ledger.entries) >= 4 + len(SERVE_POINTS)
    for entry in ledger.entries:
        turn = store.turn(entry.turn_id)
        assert turn.reply.content == entry.text
        if entry.follows is not None:
            assert store.detail(entry.follows).next_states, (
                "the correction that was answered is not in the store"
            )
    store.close()


def test_kill_9_of_the_learner_trains_every_sample_once(home: Home) -> None:
    ledger = Ledger()
    store = Store.open(f"sqlite:///{home.path / 'stereorl.db'}")
    with home.server() as url:
        for point in LEARN_POINTS:
            hold_sessions(url, ledger, tag=point, count=4)
            home.start("learn", kill_at=point).expect_killed(seconds=90)
        learner = home.start("learn")
        try:
            wait_for("the learner to finish what is left", lambda: store.funnel().waiting == 0, seconds=120)
        finally:
            learner.stop()
        served_before = len(ledger.entries)
        hold_sessions(url, ledger, tag="after", count=1)
        assert len(ledger.entries) == served_before + 2, "the server outlived ten deaths of the learner"

    assert len(ledger.entries) == 2 * (4 * len(LEARN_POINTS) + 1)
    assert store.open_steps() == []
    steps = [step for step in store.steps() if step.outcome == "published"]
    versions = Versions(home.path / "versions")
    manifests = {manifest.version: manifest for manifest in versions.list() if manifest.status == "published"}

    lineage, at = [], versions.current()
    while at:
        lineage.append(at)
        at = manifests[at].parent
    assert sorted(step.version for step in steps) == sorted(lineage) == sorted(manifests)
    assert sorted(m.step_id for m in manifests.values()) == sorted(step.step_id for step in steps)

    corrected = {entry.follows for entry in ledger.entries[:-2] if entry.follows}
    used = Counter(store.detail(turn_id).use for turn_id in corrected)
    assert None not in used, "a corrected turn was never trained"
    assert {step.step_id: step.n for step in steps} == dict(used), (
        "a step's samples and their use rows differ"
    )
    assert store.funnel().trained == len(corrected) == sum(step.n for step in steps)
    store.close()
