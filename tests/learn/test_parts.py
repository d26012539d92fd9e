"""The small parts: when to train, one learner per home, what is logged, what raises an alarm."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from stereorl.config import LearnConfig
from stereorl.errors import ProcessError
from stereorl.learn.alarms import Alarms
from stereorl.learn.batcher import Batcher
from stereorl.learn.lock import learner_lock
from stereorl.learn.metrics import append_line, plain, progress_line
from stereorl.store.records import Ready


def batcher(tmp_path, now=100.0, **settings):
    return Batcher(
        LearnConfig(**{"batch_size": 8, "max_wait_s": 60, **settings}), tmp_path, clock=lambda: now
    )


@pytest.mark.parametrize(
    ("n", "oldest", "due"),
    [(0, None, False), (7, 41.0, False), (8, 99.0, True), (9, 99.0, True), (1, 40.0, True), (1, 40.1, False)],
)
def test_a_batch_is_due_when_full_or_when_the_oldest_has_waited(tmp_path, n, oldest, due):
    assert batcher(tmp_path).due(Ready(n, oldest)) is due


@pytest.mark.parametrize(
    ("share", "new", "replays"),
    [
        (0.0, 8, {8: 0, 1: 0}),
        (0.25, 6, {6: 2, 3: 1, 1: 0}),
        (0.5, 4, {4: 4, 2: 2, 1: 1}),
        (0.99, 1, {1: 7}),
    ],
)
def test_replay_takes_its_share_of_a_batch_and_leaves_something_new(tmp_path, share, new, replays):
    half = batcher(tmp_path, replay=share)
    assert half.new == new
    assert half.due(Ready(new, 99.0))
    assert not half.due(Ready(new - 1, 99.0))
    assert {n: half.replays(n) for n in replays} == replays


def test_idle_only(tmp_path):
    def tell(in_flight, last, pid):
        (tmp_path / "activity.json").write_text(json.dumps({"in_flight": in_flight, "last_request_at": last}))
        (tmp_path / "serve.json").write_text(json.dumps({"pid": pid}))

    laptop = batcher(tmp_path, idle_only_s=30)
    assert laptop.idle()  # no server has told anything
    tell(1, 10.0, os.getpid())
    assert not laptop.idle()
    assert batcher(tmp_path).idle()  # the setting is off
    tell(0, 71.0, os.getpid())
    assert not laptop.idle()
    tell(0, 70.0, os.getpid())
    assert laptop.idle()
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    tell(1, 99.0, dead.pid)  # died while it served
    assert laptop.idle()
    (tmp_path / "activity.json").write_text("{half")
    assert laptop.idle()


def test_one_learner_per_home(tmp_path):
    with learner_lock(tmp_path):
        with pytest.raises(ProcessError, match=str(os.getpid())):
            with learner_lock(tmp_path):
                pass
    assert (tmp_path / "run" / "learn.lock").read_text() == ""
    with learner_lock(tmp_path):
        pass


def test_metrics_are_strict_json(tmp_path):
    file = tmp_path / "home" / "metrics.jsonl"
    for loss in (0.5, float("nan")):
        append_line(file, {"loss": loss, "by_version": {"0": {"n": 1}}, "gate": ["x"]})
    lines = [json.loads(line, parse_constant=pytest.fail) for line in file.read_text().splitlines()]
    assert [line["loss"] for line in lines] == [0.5, None]
    assert plain((1, float("inf"))) == [1, None]


def test_progress_line():
    record = {"step_id": 3, "outcome": "published", "version": 2, "n": 8, "n_reward": 7, "n_teacher": 4}
    line = progress_line({**record, "reward_mean": -0.25, "gate": [], "seconds": 7.31})
    assert line == "step 3 -> version 2, 8 samples (7 rewards, 4 hints), reward -0.25, 7.3 s"
    rejected = progress_line(
        {"step_id": 3, "outcome": "rejected", "version": 2, "gate": ["a weight is not finite"]}
    )
    assert rejected == "step 3 -> rejected, a weight is not finite"


def test_alarms_ring_once_per_crossing():
    alarms = Alarms(window=2, factor=3)
    for length in (30.0, 50.0):
        assert alarms.look({"reply_length": length, "entropy": 1.0}) == []
    assert alarms.look({"reply_length": 15.0}) == []
    (warning,) = alarms.look({"reply_length": 5.0, "entropy": 1.0})
    assert "5 tokens a reply" in warning
    assert alarms.look({"reply_length": 5.0}) == []
    assert alarms.look({"reply_length": 40.0}) == []
    assert len(alarms.look({"reply_length": 200.0, "entropy": 9.0})) == 2
