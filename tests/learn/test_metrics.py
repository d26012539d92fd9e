"""The statistics of an update: worked out by hand, and the same wherever they are read."""

from __future__ import annotations

import importlib.util
import json
import math

import numpy as np
import pytest
import torch
from prometheus_client.parser import text_string_to_metric_families

from stereorl.config import Config
from stereorl.errors import ConfigError
from stereorl.learn.metrics import Tokens, describe, plain
from stereorl.learn.tensorboard import FOLDER, Board, scalars
from stereorl.serve import metrics as serve_metrics
from stereorl.serve.metrics import Metrics, finite
from stereorl.store.records import Funnel, StepRow
from tests.learn.home import make_home
from tests.learn.tiny import make_sample

FOUR = ("good", "bad", "bad please answer in one short sentence", "good")
NAMED = {  # what must be known about every update that had both signals
    *("loss", "term_eval", "term_dir", "term_kl", "w_eval", "w_dir", "kl", "entropy", "reply_length"),
    *("n", "n_reward", "n_teacher", "n_both", "n_replayed", "clip_fraction", "ratio_mean"),
    *("gap_mean", "gap_p95", "gap_max", "grad_norm", "grad_norm_eval", "grad_norm_dir", "grad_cosine"),
    *("staleness_mean", "staleness_max", "importance_mean", "importance_max", "reward_mean", "step_seconds"),
}


@pytest.fixture
def learned(tmp_path):
    """A home with one published update, and TensorBoard's files of it."""
    home = make_home(tmp_path / "home", tensorboard=True)
    learner = home.learner()
    home.talk(*FOUR)
    home.drain(learner)
    learner.close()
    yield home
    home.store.close()


def shown(meters: Metrics, source) -> dict[str, float]:
    """What /metrics shows of the last update, by statistic; the other families by their name."""
    text = meters.scrape(source).decode()
    return {
        sample.labels.get("statistic", sample.name): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name.startswith(("stereorl_step", "stereorl_updates"))
    }


def test_every_statistic_is_in_the_store_and_in_the_file(learned):
    (step,) = learned.store.steps()
    assert step.metrics.keys() >= NAMED
    assert all(math.isfinite(step.metrics[name]) for name in NAMED)
    line = json.loads((learned.path / "metrics.jsonl").read_text())
    assert {name: line[name] for name in step.metrics} == step.metrics


def test_metrics_show_what_the_store_holds(learned):
    (step,) = learned.store.steps()
    values = shown(Metrics(), learned.store)
    assert values.pop("stereorl_updates_total") == 1
    assert values.pop("stereorl_step_version") == step.version == 1
    numbers = {name: v for name, v in step.metrics.items() if isinstance(v, int | float) and v is not True}
    assert values == pytest.approx(numbers)
    assert values.keys() >= NAMED


def test_tensorboard_reads_back_what_the_file_holds(learned):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(learned.path / FOLDER))
    events.Reload()
    line = json.loads((learned.path / "metrics.jsonl").read_text())
    wanted = dict(scalars(line))
    assert set(events.Tags()["scalars"]) == set(wanted)
    assert {tag.split("/")[1] for tag in wanted} >= NAMED
    for tag, value in wanted.items():
        (event,) = events.Scalars(tag)
        assert (event.step, event.value) == (line["step_id"], pytest.approx(value, rel=1e-6))
        assert event.wall_time == pytest.approx(line["at"])


def test_tensorboard_that_is_not_installed_is_refused_at_the_start(tmp_path, monkeypatch):
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: None if name == "tensorboard" else found(name, *rest)
    )
    home = make_home(tmp_path / "home", tensorboard=True)
    with pytest.raises(ConfigError, match=r"pip install 'stereorl\[tensorboard\]'"):
        home.learner()
    home.store.close()


def test_tensorboard_is_off_by_default(home):
    home.talk(*FOUR)
    learner = home.learner()
    home.drain(learner)
    learner.close()
    assert not (home.path / FOLDER).exists()


def test_tensorboard_shows_what_is_not_finite_and_no_text(tmp_path):
    record = {
        "at": 1.0,
        "step_id": 3,
        "loss": math.nan,
        "outcome": "rejected",
        "serves": False,
        "gap_mean": 2,
    }
    assert [tag for tag, _ in scalars(record)] == ["step/loss", "gap/gap_mean"]
    board = Board(Config(home=tmp_path))
    board.write(record)
    board.close()
    assert len(list((tmp_path / FOLDER).iterdir())) == 1


def test_only_single_finite_numbers_are_shown():
    metrics = {"loss": 1, "kl": math.nan, "gap_max": math.inf, "reward_mean": None, "serves": True}
    assert finite({**metrics, "by_version": {"0": {"n": 1}}, "gate": [], "Odd name": 1.0}) == {"loss": 1.0}


class Steps:
    """A store with updates and nothing else."""

    def __init__(self):
        self.rows = []

    def funnel(self):
        published = sum(row.outcome == "published" for row in self.rows)
        return Funnel(0, 0, 0, 0, 0, 0, 0, {}, {}, 0, 0, published, None, {}, {}, 0)

    def steps(self, limit=1000):
        return self.rows[-limit:]


def test_a_statistic_that_the_next_update_lacks_is_gone_and_a_rejection_changes_nothing(monkeypatch):
    monkeypatch.setattr(serve_metrics, "FUNNEL_EVERY_S", 0.0)
    meters, source = Metrics(), Steps()
    assert shown(meters, source) == {"stereorl_updates_total": 0}
    source.rows.append(StepRow(1, 0.0, "published", 1, 8, {"gap_mean": 0.5, "loss": 1.0}))
    assert shown(meters, source)["gap_mean"] == 0.5
    source.rows.append(StepRow(2, 0.0, "published", 2, 8, {"loss": 2.0}))
    wanted = {"stereorl_updates_total": 2, "stereorl_step_version": 2, "loss": 2.0}
    assert shown(meters, source) == wanted
    source.rows += [StepRow(3, 0.0, "rejected", 3, 8, {"loss": 9.0}), StepRow(4, 0.0, None, None, 8, {})]
    assert shown(meters, source) == wanted


def test_a_batch_is_described_as_by_hand():
    both = make_sample(1, reward=1.0, teacher=True, r=3, version=2)
    rewarded = make_sample(2, reward=-1.0, r=1, version=5)
    mask_BT = torch.tensor([[True, True, True], [True, False, False]])
    tokens = Tokens(mask_BT)
    nothing_BT = torch.zeros(2, 3)
    tokens.add([0, 1], {"raw_gap": torch.tensor([[1.0, -3.0, 0.5], [9.0, 9.0, 9.0]])})
    tokens.add([0, 1], {"clipped": mask_BT & torch.tensor([[True, False, False], [False, True, True]])})
    tokens.add([0, 1], {"importance": nothing_BT + 1, "kl": nothing_BT, "advantage": nothing_BT})
    logp_old_BT = torch.tensor([[-1.0, -2.0, -3.0], [-4.0, 7.0, 7.0]])
    found = describe([both, rewarded], tokens, logp_old_BT, version=6)
    assert (found["n"], found["n_reward"], found["n_teacher"], found["n_both"], found["tokens"]) == (
        2,
        2,
        1,
        1,
        4,
    )
    assert found["reward_mean"] == 0.0
    assert found["gap_mean"] == pytest.approx(-0.5)  # over the taught row alone
    assert found["gap_p95"] == pytest.approx(1 + 0.9 * 2)  # sizes 0.5, 1, 3
    assert found["gap_max"] == 3.0
    assert found["clip_fraction"] == 0.25
    assert found["entropy"] == 2.5
    assert found["reply_length"] == 2.0
    assert (found["staleness_mean"], found["staleness_max"]) == (2.5, 4)
    assert found["by_version"] == {"2": {"n": 1, "reward": 1.0}, "5": {"n": 1, "reward": -1.0}}
    assert "divergence" not in found


def test_without_a_teacher_there_is_no_gap_rather_than_a_zero():
    sample = make_sample(1, reward=1.0, r=2)
    mask_BT = torch.ones(1, 2, dtype=torch.bool)
    found = describe([sample], Tokens(mask_BT), torch.full((1, 2), -1.0), version=0)
    assert not {"gap_mean", "gap_p95", "gap_max", "kl", "clip_fraction"} & found.keys()


def test_json_has_no_nan():
    assert plain({"a": math.nan, "b": [math.inf, 1.0], "c": {"d": -math.inf}}) == {
        "a": None,
        "b": [None, 1.0],
        "c": {"d": None},
    }
    assert plain(float(np.float32(0.5))) == 0.5
