"""The whole learner on a tiny model and a real store: funnel, publishing, rollback, rejection, staleness."""

from __future__ import annotations

import json
import threading
import time

import numpy as np
import pytest
import torch

from stereorl import faults
from stereorl.errors import StoreError, TeacherError, VersionError
from tests.learn.home import FlatTeacher, equal, make_home, tensors

FOUR = ("good", "bad", "bad please answer in one short sentence", "good")


def test_four_judged_turns_become_a_version(home):
    ids = home.talk(*FOUR)
    learner = home.learner()
    home.drain(learner)
    assert home.versions.current() == learner.version == 1
    funnel = home.store.funnel()
    assert (funnel.captured, funnel.trained, funnel.waiting, funnel.steps) == (4, 4, 0, 1)
    assert funnel.rewards == {1: 2, 0: 0, -1: 2}
    assert home.store.detail(ids[0]).version == 1
    line = json.loads((home.path / "metrics.jsonl").read_text())
    assert (line["outcome"], line["version"], line["n"], line["reward_mean"]) == ("published", 1, 4, 0.0)
    manifest = home.versions.manifest(1)
    assert (manifest.parent, manifest.step_id, manifest.status) == (0, line["step_id"], "published")
    assert home.store.steps()[0].metrics["n_reward"] == 4


def test_it_waits_for_a_whole_batch_or_for_time_to_pass(tmp_path):
    home = make_home(tmp_path / "a")
    home.talk("good", "bad", "good")
    learner = home.learner()
    home.drain(learner)
    assert home.versions.current() == 0
    assert home.store.ready().n == 3
    impatient = make_home(tmp_path / "b", max_wait_s=0.001)
    impatient.talk("good")
    home.drain(impatient.learner())
    assert impatient.versions.current() == 1  # a single sample trains


def test_what_is_over_stays_for_the_next_batch(home):
    home.talk(*FOUR, "good", "good")
    learner = home.learner()
    home.drain(learner)
    assert home.store.funnel().trained == 4
    assert home.store.ready().n == 2  # nothing is discarded
    home.talk("bad", "bad")
    home.drain(learner)
    assert (home.versions.current(), home.store.funnel().trained) == (2, 8)


def test_every_drop_has_a_name(home):
    cancelled, error, silent, unclear, empty = (
        *home.talk("good", finish_reason="cancelled"),
        *home.talk("good", finish_reason="error"),
        *home.talk(None),
        *home.talk("hm"),
        *home.talk("good"),
    )
    gone = home.talk(None, finish_reason="cancelled")[0]
    none = replace_response(home)
    for turn_id in (silent, gone):
        home.close(turn_id)
    waiting = home.talk(None)[0]
    home.drain(home.learner())
    reasons = {
        name: home.store.detail(name).drop for name in (cancelled, error, silent, unclear, empty, gone, none)
    }
    assert reasons == {
        cancelled: "cancelled",
        error: "error",
        silent: "no_next_state",
        unclear: "no_signal",
        empty: None,
        gone: "cancelled",
        none: "empty_reply",
    }
    assert home.store.detail(waiting).stage == "captured"


def replace_response(home):
    """A turn without a single sampled token."""
    nothing = np.zeros(0)
    return home.talk(
        "good",
        response_ids=nothing.astype(np.int32),
        log_probs=nothing.astype(np.float32),
        versions=nothing.astype(np.int32),
    )[0]


def test_a_hint_is_scored_and_trained(home):
    hinted = home.talk("bad please answer in one short sentence")[0]
    home.talk("good", "good", "good")
    home.drain(home.learner())
    detail = home.store.detail(hinted)
    assert [hint.accepted for hint in detail.hints] == [True]
    assert home.teacher.asked == 1
    assert detail.version == 1
    assert home.store.steps()[0].metrics["n_teacher"] == 1


def test_hints_that_cannot_be_scored_leave_the_reward(home):
    (rewarded,) = home.talk(FOUR[2])
    (hinted,) = home.talk("That was wrong, use one short sentence")  # a word that this judge does not know
    learner = home.learner()
    learner.parts.collector.collect()
    home.teacher.refuses = {home.store.detail(key).hints[0].text for key in (rewarded, hinted)}
    home.drain(learner)
    detail = home.store.detail(rewarded)
    assert (detail.stage, detail.unscored, detail.drop) == ("ready", "hint_over_context", None)
    detail = home.store.detail(hinted)
    assert (detail.unscored, detail.drop, detail.drop_stage) == ("hint_over_context",) * 2 + ("score",)
    home.talk("good", "good", "good")
    home.drain(learner)
    detail = home.store.detail(rewarded)
    assert (detail.version, detail.teacher_scores) == (1, ())


def test_a_teacher_that_fails_stops_no_training(home, caplog):
    home.teacher.failure = TeacherError("The teacher cannot be reached.")
    (hinted,) = home.talk(FOUR[2])
    ids = home.talk("good", "bad", "good", "bad")
    learner = home.learner()
    home.drain(learner)
    assert {home.store.detail(key).version for key in ids} == {1}
    assert home.store.detail(hinted).stage == "score"
    assert caplog.text.count("asking again in 1 s") == 1  # the rounds after it did not ask
    home.teacher.failure = None
    learner.parts.scorer._not_before = 0.0
    home.drain(learner)
    assert home.store.detail(hinted).stage == "ready"


def test_what_waits_beyond_the_buffer_is_dropped_the_oldest_first(tmp_path):
    home = make_home(tmp_path / "home", buffer_size=5)
    ids = home.talk(*["good"] * 8)
    learner = home.learner()
    learner.parts.collector.collect()
    learner.learn_once()
    assert [home.store.detail(key).drop for key in ids[:3]] == ["buffer_full"] * 3
    assert [home.store.detail(key).version for key in ids[3:]] == [1, 1, 1, 1, None]
    funnel = home.store.funnel()
    assert funnel.captured == funnel.trained + funnel.waiting + sum(funnel.dropped.values())


def test_a_share_of_each_batch_is_drawn_again(tmp_path):
    home = make_home(tmp_path / "home", replay=0.5)
    learner = home.learner()
    first = home.talk("good", "bad")
    home.drain(learner)
    assert home.versions.current() == 1  # two of four are new, and nothing was there to draw
    second = home.talk("good", "bad", version=1)
    home.drain(learner)
    metrics = home.store.steps()[-1].metrics
    assert (metrics["n"], metrics["n_replayed"], home.store.steps()[-1].n) == (4, 2, 2)
    assert [home.store.detail(key).replays for key in (*first, *second)] == [(2,), (2,), (), ()]
    assert [home.store.detail(key).version for key in (*first, *second)] == [1, 1, 2, 2]
    assert home.store.funnel().replayed == 2
    home.drain(learner)
    assert home.versions.current() == 2  # without a new sample there is no update


def test_what_is_too_old_is_not_drawn_again(tmp_path):
    home = make_home(tmp_path / "home", replay=0.5, max_staleness=0)
    learner = home.learner()
    for version in range(3):
        home.talk("good", "bad", version=version)
        home.drain(learner)
    assert home.versions.current() == 3
    assert home.store.funnel().replayed == 0


@pytest.mark.parametrize("queue", ["judge_queue", "score_queue", "orphan_queue", "signalless"])
def test_a_session_forgotten_between_queue_and_record_is_passed_over(home, monkeypatch, queue):
    (turn_id,) = home.talk(
        {"score_queue": FOUR[2], "orphan_queue": None, "signalless": "hm"}.get(queue, "good")
    )
    home.close(turn_id)
    session_id, real = home.store.turn(turn_id).session_id, getattr(home.store, queue)

    def then_forget(*args, **given):
        found = list(real(*args, **given))
        if found:
            home.store.forget(session_id)
        return found

    monkeypatch.setattr(home.store, queue, then_forget)
    home.drain(home.learner())
    assert home.store.funnel().captured == 0


def test_a_session_forgotten_during_the_step_does_not_stop_it(home, monkeypatch):
    ids = home.talk(*FOUR)
    at(monkeypatch, "learn.stepped", lambda: home.store.forget(home.store.turn(ids[0]).session_id))
    home.drain(home.learner())
    assert home.versions.current() == 1
    assert home.store.funnel().trained == 3


def test_a_live_teacher_is_asked_again_at_the_step(tmp_path):
    home = make_home(tmp_path / "home", teacher=FlatTeacher("live"))
    home.talk(*FOUR)
    home.drain(home.learner())
    assert home.teacher.asked == 2


def test_a_second_learner_continues_bit_for_bit(tmp_path):
    """Two updates, a new process, two more: equal to four in one go, optimiser and baseline included."""
    whole, halves = make_home(tmp_path / "whole"), make_home(tmp_path / "halves")
    learner = whole.learner()
    for seed in range(4):
        talk(whole, seed)
        whole.drain(learner)
    first = halves.learner()
    for seed in range(2):
        talk(halves, seed)
        halves.drain(first)
    second = halves.learner()
    for seed in range(2, 4):
        talk(halves, seed)
        halves.drain(second)
    assert whole.versions.current() == halves.versions.current() == 4
    assert equal(tensors(learner), tensors(second))
    assert learner.parts.trainer.running_mean == second.parts.trainer.running_mean
    assert second.parts.trainer.updates == 4


def talk(home, seed):
    for offset, text in enumerate(FOUR):
        home.talk(text, seed=10 * seed + offset)


def test_it_follows_a_rollback_and_trains_samples_of_versions_above(home):
    learner = home.learner()
    home.talk(*FOUR)
    home.drain(learner)
    after_one = tensors(learner)
    home.talk(*FOUR, version=1)
    home.drain(learner)
    home.versions.set_current(1)
    learner.follow()
    assert learner.version == 1
    assert equal(tensors(learner), after_one)
    home.talk(*FOUR, version=2)  # sampled by the version that was rolled back
    home.drain(learner)
    assert home.versions.current() == 3
    assert home.versions.manifest(3).parent == 1
    assert home.store.funnel().dropped == {}


def test_a_rollback_to_the_base_starts_from_nothing(home):
    learner = home.learner()
    learner.follow()
    start = tensors(learner)
    home.talk(*FOUR)
    home.drain(learner)
    home.versions.set_current(0)
    learner.follow()
    assert equal(tensors(learner), start)
    assert learner.parts.trainer.running_mean == 0.0


@pytest.mark.parametrize("moment", ["learn.stepped", "learn.staged"])
def test_a_rollback_during_a_step_abandons_it(home, monkeypatch, moment):
    learner = home.learner()
    home.talk(*FOUR)
    home.drain(learner)
    home.talk(*FOUR, version=1)
    at(monkeypatch, moment, lambda: home.versions.set_current(0))
    learner.tick()
    monkeypatch.undo()
    assert [step.outcome for step in home.store.steps()] == ["published", "abandoned"]
    assert home.versions.current() == 0
    assert home.store.ready().n == 4
    assert not list(home.versions.root.glob(".stage-*"))
    home.drain(learner)  # they train from the base instead
    assert home.versions.manifest(home.versions.current()).parent == 0


def test_a_rollback_after_the_rename_leaves_the_version_unserved(home, monkeypatch):
    learner = home.learner()
    home.talk(*FOUR)
    home.drain(learner)
    home.talk(*FOUR, version=1)
    at(monkeypatch, "learn.published", lambda: home.versions.set_current(0))
    learner.tick()
    assert home.versions.current() == 0
    assert home.store.steps()[-1].outcome == "published"  # trained, once, into a version that does not serve
    learner.tick()
    assert learner.version == 0


def test_stale_samples_are_dropped_and_the_rest_trained(tmp_path):
    home = make_home(tmp_path / "home", max_staleness=0)
    learner = home.learner()
    home.talk(*FOUR)
    home.drain(learner)
    old = home.talk("good", version=0)[0]
    new = home.talk(*FOUR, version=1)
    home.drain(learner)
    assert home.store.detail(old).drop == "stale"
    assert {home.store.detail(turn_id).version for turn_id in new} == {2}


def test_weights_that_are_not_finite_never_serve_and_the_learner_recovers(home, monkeypatch):
    learner = home.learner()
    home.talk(*FOUR)
    home.drain(learner)
    before = tensors(learner)
    bad = home.talk(*FOUR, version=1)

    def poison():
        with torch.no_grad():
            learner.parts.trainer.parameters[0][0, 0] = float("nan")

    at(monkeypatch, "learn.stepped", poison)
    learner.tick()
    monkeypatch.undo()
    assert home.versions.current() == 1
    step = home.store.steps()[-1]
    assert (step.outcome, step.metrics["gate"]) == ("rejected", ["a weight is not finite"])
    assert home.versions.manifest(step.version).status == "rejected"  # kept for inspection
    assert home.store.detail(bad[0]).drop == "gate_rejected"
    learner.follow()
    assert equal(tensors(learner), before)
    home.talk(*FOUR, version=1)
    home.drain(learner)
    assert home.versions.current() == 3
    assert home.versions.manifest(3).parent == 1


def test_a_kl_over_the_cap_is_rejected(home):
    home.talk(*FOUR)
    learner = home.learner(kl_cap=1e-9)
    learner.tick()
    step = home.store.steps()[-1]
    assert step.outcome == "rejected"
    assert "gate.kl_cap" in step.metrics["gate"][0]
    assert home.versions.current() == 0


def test_a_step_that_raises_is_tried_again_then_dropped(home, monkeypatch):
    ids = home.talk(*FOUR)
    learner = home.learner()

    def fail(*_, **__):
        raise RuntimeError("out of memory")

    monkeypatch.setattr(learner.parts.trainer, "step", fail)
    home.drain(learner)
    assert [step.outcome for step in home.store.steps()] == ["abandoned", "rejected"]
    assert home.store.detail(ids[0]).drop == "gate_rejected"


def test_a_version_of_another_model_is_refused(home):
    home.talk(*FOUR)
    home.drain(home.learner())
    other = home.learner()
    other.parts.checkpoints._digest = "another"
    with pytest.raises(VersionError, match="--home"):
        other.follow()
    with pytest.raises(VersionError, match="--home"):
        other.check_base()


def test_a_broken_version_waits_for_a_rollback(home):
    home.talk(*FOUR)
    home.drain(home.learner())
    (home.versions.root / "CURRENT").write_text("nonsense")
    learner = home.learner()
    learner.check_base()
    with pytest.raises(VersionError, match="not a number"):
        learner.follow()
    home.versions.set_current(1)
    learner.follow()
    assert learner.version == 1


def test_run_survives_a_failing_store_and_stops_when_told(home, monkeypatch):
    home.talk(*FOUR)
    learner = home.learner()
    real, failures = home.store.finish_step, []

    def flaky(*args, **given):
        if not failures:
            failures.append(1)
            raise StoreError("The disk is full.")
        return real(*args, **given)

    monkeypatch.setattr(home.store, "finish_step", flaky)
    stop = threading.Event()
    thread = threading.Thread(target=learner.run, args=(stop,))
    thread.start()
    try:
        wait_for(lambda: home.store.funnel().trained == 4)
        wait_for(lambda: learner.version == 1)
        home.talk(*FOUR, version=1)
        wait_for(lambda: home.versions.current() == 2)
    finally:
        stop.set()
        thread.join(20)
    assert not thread.is_alive()
    assert [step.outcome for step in home.store.steps()] == [
        "published",
        "published",
    ]  # repaired, not repeated


def test_run_reports_what_the_collector_cannot_survive(home, monkeypatch):
    learner = home.learner()

    def fail():
        raise KeyError("a bug")

    monkeypatch.setattr(learner.parts.collector, "collect", fail)
    with pytest.raises(KeyError, match="a bug"):
        learner.run(threading.Event())


def test_full_fine_tuning_publishes_and_resumes(tmp_path):
    home = make_home(tmp_path / "home", adapter="full", lr=1e-3)
    learner = home.learner()
    home.talk(*FOUR)
    home.drain(learner)
    assert home.versions.current() == 1
    second = home.learner()
    second.follow()
    assert equal(tensors(learner), tensors(second))
    home.versions.set_current(0)
    second.follow()
    fresh = make_home(tmp_path / "fresh", adapter="full", lr=1e-3).learner()
    assert equal(tensors(second), tensors(fresh))


def at(monkeypatch, name, action):
    """Do `action` once, at the fault point `name`."""
    done = []

    def point(here):
        if here == name and not done:
            done.append(here)
            action()

    monkeypatch.setattr(faults, "point", point)


def wait_for(condition, seconds=30):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "timed out"
        time.sleep(0.05)


def test_a_hint_that_cannot_be_read_any_more_takes_no_other_with_it(home):
    """Settings that want more of the teacher than was recorded, and a hint that it no longer scores."""
    home.talk(*FOUR[:3], "Please answer in one sentence.")
    learner = home.learner()
    learner.parts.collector.collect()
    learner.parts.scorer.score()
    claim = home.store.claim(4, parent_version=0)
    alone = [s.turn.turn_id for s in claim.samples if not s.has_reward]
    learner.parts.publisher.abandon(claim.step_id, "only looked at")
    learner.parts.scorer._top_k = 3
    home.teacher.refuses = {s.hint for s in claim.samples if s.hint}
    home.drain(learner)
    assert "rejected" not in {step.outcome for step in home.store.steps()}
    assert alone
    assert [home.store.detail(key).drop for key in alone] == ["hint_unscored"] * len(alone)


def test_a_step_that_needs_an_absent_teacher_waits_for_it(home):
    ids = home.talk(*FOUR)
    learner = home.learner()
    learner.parts.collector.collect()
    learner.parts.scorer.score()
    learner.parts.scorer._top_k = 3
    home.teacher.failure = TeacherError("away")
    for _ in range(5):
        learner.learn_once()
    assert [step.outcome for step in home.store.steps()] == ["abandoned"]
    assert not any(home.store.detail(key).drop for key in ids)
    home.teacher.failure, learner.parts.scorer._not_before = None, 0.0
    learner.learn_once()
    assert home.store.steps()[-1].outcome == "published"
