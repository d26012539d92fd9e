"""Statistics, the record, the table and the picture, on made-up outcomes."""

from __future__ import annotations

import io
import json
import struct
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from stereorl.config import load_config
from stereorl.store.records import Funnel
from stereorl.study.demo import QUICK, DemoSettings, behind
from stereorl.study.evaluate import Evaluation
from stereorl.study.plot import plot
from stereorl.study.report import DemoReport, print_report
from stereorl.study.stats import mean, wilson
from stereorl.study.user import Reply, SessionResult


def reply(kept: bool, text: str = "Boil [it] well.") -> Reply:
    return Reply("t", "How?", text if kept else text + " And then" * 20, "stop" if kept else "length", kept)


@pytest.fixture
def report(tmp_path: Path) -> DemoReport:
    step = {"outcome": "published", "version": 1, "metrics": {"reward_mean": -1.0}}
    return DemoReport(
        settings={"seed": 0},
        config={"home": "x"},
        home=tmp_path,
        before=Evaluation(0, (reply(False),) * 4, -1.0, -1.5),
        after=Evaluation(2, (reply(True),) * 3 + (reply(False),), -1.2, None),
        base_replies=(reply(False),),
        sessions=tuple(SessionResult(n, (reply(n > 2),)) for n in range(6)),
        funnel={"captured": 9, "judged": 7, "hinted": 5, "trained": 6},
        steps=(step, {**step, "metrics": {"reward_mean": 0.5}}, {**step, "outcome": "rejected"}),
        seconds={"total": 12.345},
    )


def test_wilson_by_hand() -> None:
    """8 of 10 at z = 1.96: centre (0.8 + 0.19208) / 1.38416 = 0.71674, half width 0.22659."""
    low, high = wilson(8, 10)
    assert low == pytest.approx(0.49016, abs=1e-4)
    assert high == pytest.approx(0.94333, abs=1e-4)


def test_wilson_at_the_edges() -> None:
    assert wilson(0, 0) == (0.0, 1.0)
    assert wilson(0, 24)[0] == pytest.approx(0, abs=1e-12)
    assert wilson(24, 24)[1] == pytest.approx(1, abs=1e-12)
    assert wilson(5, 20, z=0.0) == (0.25, 0.25)


def test_the_mean_of_nothing_is_not_zero() -> None:
    assert mean([]) is None
    assert mean([1.0, 2.0]) == 1.5


def test_the_last_line_has_the_agreed_keys(report: DemoReport) -> None:
    assert report.summary() == {
        "captured": 9,
        "judged": 7,
        "hinted": 5,
        "trained": 6,
        "updates": 2,
        "version": 2,
        "before": 0.0,
        "after": 0.75,
    }


def test_the_record_holds_everything_and_is_json(report: DemoReport, tmp_path: Path) -> None:
    report.write(tmp_path / "report.json")
    record = json.loads((tmp_path / "report.json").read_text())
    assert record["summary"] == report.summary()
    assert record["before"]["interval"] == [0.0, 0.4899]
    assert len(record["after"]["replies"]) == 4
    assert record["sessions"][5]["replies"][0]["kept"] is True
    assert record["packages"]["torch"].startswith("2.")
    assert record["settings"] == {"seed": 0}


def test_the_table_prints_replies_as_they_are(report: DemoReport) -> None:
    out = io.StringIO()
    print_report(report, Console(file=out, width=120))
    text = out.getvalue()
    assert "0.75 [0.30, 0.95]" in text
    assert "Boil [it] well." in text
    assert "not measured" in text


def test_the_picture_is_drawn(report: DemoReport, tmp_path: Path) -> None:
    path = plot(report, tmp_path / "plot.png")
    assert path is not None
    head = path.read_bytes()[:24]
    assert head[:4] == b"\x89PNG"
    assert struct.unpack(">II", head[16:24])[0] > 1000


@pytest.mark.parametrize("settings", [DemoSettings(), QUICK])
def test_the_settings_are_a_valid_configuration(settings: DemoSettings) -> None:
    config = load_config(None, settings.overrides()).config
    assert config.learn.batch_size == settings.batch_size
    assert settings.backlog >= settings.batch_size - 1, (
        "sessions would wait for an update that waits for them"
    )


def test_who_waits_for_the_learner_is_not_who_waits_for_its_user() -> None:
    funnel = Funnel(10, 0, 5, 5, 5, 2, 7, {"x": 1}, {}, 0, 3, 1, None, {"captured": 4, "ready": 3})
    assert behind(funnel) == 3
    assert behind(replace(funnel, stages={})) == 7
