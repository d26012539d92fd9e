"""Queues, drops and the exactly-once claim."""

from __future__ import annotations

import math
import multiprocessing
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from stereorl.data import TeacherScore
from stereorl.errors import MisalignedError, NotFoundError, StoreError
from stereorl.store import Drop, NewSession, SessionEvent, Store
from tests.store.build import (
    BAD,
    GOOD,
    HINT,
    MUTE,
    REFUSED,
    fill,
    followed,
    make_ready,
    make_turn,
    score_of,
    url_of,
)
from tests.store.worker import claim_all


def test_a_turn_walks_through_the_queues(store: Store) -> None:
    store.put([NewSession("s0", 1.0, "new"), make_turn()])
    assert (store.judge_queue(), store.orphan_queue(), store.ready().n) == ([], [], 0)
    store.put([followed("t0")])
    assert [item.turn.turn_id for item in store.judge_queue()] == ["t0"]
    store.record_judgement("t0", BAD, [REFUSED, HINT])
    assert store.judge_queue() == []
    ((turn, hints),) = store.score_queue()
    assert (turn.turn_id, hints) == ("t0", (HINT,))
    assert store.ready().n == 0  # a hinted turn waits for its teacher
    store.record_teacher_score(score_of(turn))
    ready = store.ready()
    assert ready.n == 1
    assert ready.oldest_at is not None
    claim = store.claim(8, parent_version=3)
    assert claim is not None
    (sample,) = claim.samples
    assert (sample.reward, sample.hint) == (-1.0, HINT.text)
    assert sample.teacher_log_probs is not None
    assert sample.teacher_log_probs.tobytes() == score_of(turn).log_probs.tobytes()
    assert store.claim(8, parent_version=3) is None
    assert [(s.step_id, s.parent_version, s.turn_ids) for s in store.open_steps()] == [
        (claim.step_id, 3, ("t0",))
    ]


def test_absent_signals_stay_absent(store: Store) -> None:
    fill(store, ["reward", "hint", "none"])
    store.record_judgement("reward", GOOD, [REFUSED])
    store.record_judgement("hint", MUTE, [HINT])
    store.record_judgement("none", MUTE, [REFUSED])
    assert store.signalless() == ["none"]
    store.record_teacher_score(score_of(store.turn("hint")))
    claim = store.claim(8, parent_version=0)
    assert claim is not None
    found = {s.turn.turn_id: (s.reward, s.has_teacher) for s in claim.samples}
    assert found == {"reward": (1.0, False), "hint": (None, True)}


def test_only_what_is_claimed_is_taken_and_the_oldest_first(store: Store) -> None:
    make_ready(store, [f"t{k}" for k in range(20)])
    taken = [store.claim(8, parent_version=0) for _ in range(4)]
    sizes = [len(claim.samples) if claim else 0 for claim in taken]
    assert sizes == [8, 8, 4, 0]  # 20 queued, 20 used, none lost
    assert taken[0] is not None
    assert [s.turn.turn_id for s in taken[0].samples] == [f"t{k}" for k in range(8)]


def test_outcomes(store: Store) -> None:
    make_ready(store, ["a", "b", "c"])
    steps = []
    for _ in range(3):
        claim = store.claim(1, parent_version=0)
        assert claim is not None
        steps.append(claim.step_id)
    waited = store.ready()
    store.finish_step(
        steps[0], "published", version=1, metrics={"loss": np.float32(0.5), "kl": math.nan, "by": [1]}
    )
    store.finish_step(steps[1], "rejected", version=2, metrics={"why": "KL"})
    store.finish_step(steps[2], "abandoned", version=None, metrics={})
    assert waited.n == 0
    assert [store.detail(key).drop for key in "abc"] == [None, "gate_rejected", None]
    assert store.ready().n == 1  # c is back
    rows = store.steps()
    assert [(row.outcome, row.version, row.n) for row in rows] == [
        ("published", 1, 1),
        ("rejected", 2, 1),
        ("abandoned", None, 1),
    ]
    assert rows[0].metrics["loss"] == 0.5
    assert math.isnan(rows[0].metrics["kl"])
    assert store.open_steps() == []
    funnel = store.funnel()
    assert (funnel.trained, funnel.waiting, dict(funnel.dropped), funnel.steps) == (
        1,
        1,
        {"gate_rejected": 1},
        1,
    )
    assert store.trained_versions("s0") == [1]


def test_abandoning_does_not_reset_the_wait(store: Store) -> None:
    make_ready(store, ["a"])
    since = store.ready().oldest_at
    claim = store.claim(1, parent_version=0)
    assert claim is not None
    store.finish_step(claim.step_id, "abandoned", version=None, metrics={})
    assert store.ready().oldest_at == since


def test_finishing_twice(store: Store) -> None:
    make_ready(store, ["a"])
    claim = store.claim(1, parent_version=0)
    assert claim is not None
    store.finish_step(claim.step_id, "published", version=1, metrics={})
    store.finish_step(claim.step_id, "published", version=1, metrics={"again": 1})
    assert store.steps()[0].metrics == {}
    with pytest.raises(StoreError, match="two learners"):
        store.finish_step(claim.step_id, "abandoned", version=None, metrics={})
    with pytest.raises(NotFoundError):
        store.finish_step(99, "abandoned", version=None, metrics={})


def test_judging_and_scoring_twice_change_nothing(store: Store) -> None:
    fill(store, ["t0"])
    store.record_judgement("t0", BAD, [HINT])
    store.record_judgement("t0", GOOD, [])
    assert store.detail("t0").verdict == BAD
    first = score_of(store.turn("t0"))
    store.record_teacher_score(first)
    store.record_teacher_score(score_of(store.turn("t0"), "other"))
    assert store.detail("t0").teacher_scores[0].hint == first.hint
    with pytest.raises(NotFoundError):
        store.record_judgement("t9", GOOD, [])


@pytest.mark.parametrize("log_probs", [np.zeros(6), np.zeros(8), np.full(7, np.nan), np.full(7, -np.inf)])
def test_teacher_scores_that_do_not_fit_are_refused(store: Store, log_probs: np.ndarray) -> None:
    fill(store, ["t0"])
    store.record_judgement("t0", BAD, [HINT])
    with pytest.raises(MisalignedError, match="t0"):
        store.record_teacher_score(TeacherScore("t0", "h", "base", 0.6, log_probs.astype(np.float32)))
    assert len(store.score_queue()) == 1


def test_drops_are_final_and_the_first_reason_stays(store: Store) -> None:
    fill(store, ["t0"])
    store.drop("t0", "judge", "judge_failed")
    store.drop("t0", "score", "later")
    store.record_judgement("t0", GOOD, [])
    detail = store.detail("t0")
    assert (detail.drop, detail.drop_stage, detail.verdict) == ("judge_failed", "judge", None)
    assert (store.judge_queue(), store.ready().n) == ([], 0)
    with pytest.raises(NotFoundError):
        store.drop("t9", "judge", "x")


def test_what_is_held_or_trained_cannot_be_dropped(store: Store) -> None:
    make_ready(store, ["t0"])
    claim = store.claim(1, parent_version=0)
    assert claim is not None
    store.drop("t0", "used", "x")
    store.finish_step(claim.step_id, "published", version=1, metrics={})
    store.drop("t0", "used", "x")
    assert store.detail("t0").drop is None


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"finish_reason": "cancelled"}, "cancelled"),
        ({"finish_reason": "error"}, "error"),
        ({"size": 0}, "empty_reply"),
    ],
)
def test_what_cannot_train_is_dropped_by_name_at_capture(store: Store, changes: dict, reason: str) -> None:
    store.put([NewSession("s0", 1.0, "new"), make_turn("t0", **changes), followed("t0")])
    assert dict(store.funnel().dropped) == {reason: 1}
    assert store.judge_queue() == []


def test_side_turns_never_train(store: Store) -> None:
    store.put(
        [NewSession("s0", 1.0, "new"), make_turn(kind="side"), followed("t0"), Drop("t0", "captured", "x")]
    )
    store.record_judgement("t0", GOOD, [])
    assert (store.judge_queue(), store.ready().n) == ([], 0)
    funnel = store.funnel()
    assert (funnel.captured, funnel.side, funnel.waiting, dict(funnel.dropped)) == (0, 1, 0, {})


def test_orphans_are_those_of_closed_sessions(store: Store) -> None:
    store.put([NewSession("s0", 1.0, "new"), make_turn("t0"), make_turn("t1", index=1), followed("t0")])
    assert store.orphan_queue() == []
    store.put([SessionEvent("s0", "closed", "idle", 2.0)])
    assert store.orphan_queue() == ["t1"]
    store.drop("t1", "captured", "no_next_state")
    assert store.orphan_queue() == []


def test_an_unreadable_sample_does_not_block_the_others(store: Store) -> None:
    make_ready(store, ["a", "b"])
    with store._engine.begin() as connection:
        connection.exec_driver_sql("UPDATE turn SET log_probs = prompt_ids WHERE turn_id = 'a'")
    claim = store.claim(2, parent_version=0)
    assert claim is not None
    assert [s.turn.turn_id for s in claim.samples] == ["b"]
    assert dict(store.funnel().dropped) == {"misaligned": 1}


def test_two_learners_and_a_server_share_one_store(store: Store, url: str) -> None:
    """While turns are still written, two processes claim: each turn is trained by one of them, none twice."""
    early, late = [f"e{k:02d}" for k in range(20)], [f"l{k:02d}" for k in range(20)]
    make_ready(store, early)
    spawn = multiprocessing.get_context("spawn")
    start, written, results = spawn.Barrier(3), spawn.Event(), spawn.Queue()
    workers = [spawn.Process(target=claim_all, args=(url, start, written, results)) for _ in range(2)]
    for worker in workers:
        worker.start()
    start.wait(60)
    writer = store.writer()
    for key in late:
        writer.submit([make_turn(key), followed(key)]).result(30)
        store.record_judgement(key, GOOD, [])
    written.set()
    taken = [results.get(timeout=60) for _ in workers]
    writer.close()
    for worker in workers:
        worker.join(30)
    assert sorted(taken[0] + taken[1]) == early + late
    assert store.funnel().trained == 40


class Life(RuleBasedStateMachine):
    """Any sequence of captures, judgements, drops, claims, outcomes and restarts: no turn is trained twice or lost."""

    @initialize()
    def start(self) -> None:
        self.folder = tempfile.TemporaryDirectory()
        self.store = Store.open(url_of(Path(self.folder.name)))
        self.store.put([NewSession("s0", 1.0, "new")])
        self.captured: list[str] = []
        self.open: dict[int, list[str]] = {}
        self.trained: list[str] = []
        self.lost: set[str] = set()

    @rule(n=st.integers(1, 3), followed_by=st.booleans())
    def capture(self, n: int, followed_by: bool) -> None:
        for _ in range(n):
            key = f"t{len(self.captured)}"
            self.store.put([make_turn(key), *([followed(key)] if followed_by else [])])
            self.captured.append(key)

    @rule(verdict=st.sampled_from([GOOD, BAD, MUTE]), hints=st.sampled_from([[], [HINT], [REFUSED]]))
    def judge(self, verdict, hints) -> None:  # type: ignore[no-untyped-def]
        for item in self.store.judge_queue(2):
            self.store.record_judgement(item.turn.turn_id, verdict, hints)

    @rule()
    def teach(self) -> None:
        for turn, hints in self.store.score_queue(2):
            self.store.record_teacher_score(score_of(turn, hints[0].text))

    @rule()
    def cannot_teach(self) -> None:
        for turn, _ in self.store.score_queue(1):
            self.store.record_unscored(turn.turn_id, "hint_over_context")
            if self.store.detail(turn.turn_id).drop is not None:
                self.lost.add(turn.turn_id)

    @rule(keep=st.integers(0, 3))
    def trim(self, keep: int) -> None:
        held = [key for keys in self.open.values() for key in keys]
        before = self.store.ready().n
        assert self.store.trim_ready(keep) == max(0, before - keep)
        gone = [key for key in self.captured if self.store.detail(key).drop == "buffer_full"]
        assert not set(gone) & {*held, *self.trained}
        self.lost.update(gone)

    @precondition(lambda self: self.captured)
    @rule(data=st.data())
    def drop(self, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from(self.captured))
        final = key in self.trained or any(key in held for held in self.open.values())
        self.store.drop(key, "test", "chance")
        if not final:
            self.lost.add(key)

    @rule(n=st.integers(1, 4), replay=st.integers(0, 3))
    def claim(self, n: int, replay: int) -> None:
        claim = self.store.claim(n, parent_version=0, replay=replay)
        if claim is not None:
            again = [sample.turn.turn_id for sample in claim.replayed]
            assert len(again) == len(set(again)) == min(replay, len(self.trained))
            assert set(again) <= set(self.trained)
            self.open[claim.step_id] = [sample.turn.turn_id for sample in claim.samples]

    @precondition(lambda self: self.open)
    @rule(outcome=st.sampled_from(["published", "rejected", "abandoned"]), twice=st.booleans())
    def finish(self, outcome, twice: bool) -> None:  # type: ignore[no-untyped-def]
        step_id, held = self.open.popitem()
        for _ in range(1 + twice):
            self.store.finish_step(step_id, outcome, version=step_id, metrics={})
        if outcome == "published":
            self.trained += held
        elif outcome == "rejected":
            self.lost.update(held)

    @rule()
    def restart(self) -> None:
        self.store.close()
        self.store = Store.open(url_of(Path(self.folder.name)))
        assert {step.step_id: list(step.turn_ids) for step in self.store.open_steps()} == self.open

    @invariant()
    def nothing_twice_nothing_lost(self) -> None:
        held = [key for keys in self.open.values() for key in keys]
        assert len(held + self.trained) == len(set(held + self.trained))
        funnel = self.store.funnel()
        assert funnel.trained == len(self.trained)
        assert sum(funnel.dropped.values()) == len(self.lost)
        assert funnel.captured == len(self.captured)
        assert funnel.captured == funnel.trained + funnel.waiting + sum(funnel.dropped.values())

    def teardown(self) -> None:
        assert self.store.integrity_check() == "ok"
        self.store.close()
        self.folder.cleanup()


TestLife = Life.TestCase
TestLife.settings = settings(max_examples=6, stateful_step_count=20, deadline=None)
