"""Commands that look, on a real store."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from stereorl.cli.status import verdict
from stereorl.cli.turn import advantages, as_dict, print_turn, shade
from stereorl.cli.write import duration, sparkline
from stereorl.config import Config, load_config
from stereorl.data import Hint, Verdict
from stereorl.store.records import Funnel
from stereorl.store.store import Store


def test_help_is_quick_and_needs_no_torch() -> None:
    code = (
        "import sys\nfrom stereorl.cli.main import main\n"
        "try: main(['--help'])\nexcept SystemExit: pass\n"
        "heavy = {'torch', 'transformers', 'numpy', 'sqlalchemy', 'fastapi', 'openai', 'httpx'} & set(sys.modules)\n"
        "print('HEAVY', sorted(heavy))"
    )
    out = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    ).stdout
    assert out.strip().endswith("HEAVY []")


def test_every_command_has_an_example(cli) -> None:
    from stereorl.cli.main import PANELS

    for command in [command for commands in PANELS.values() for command in commands]:
        assert "`stereorl " in (command.__doc__ or ""), command.__name__


def test_status_tells_the_funnel(cli, home: Path) -> None:
    out = cli("status", "--home", home).out
    assert "learning?  It trains: 1 update" in out
    assert "captured   3 turns in 2 sessions" in out
    assert "dropped    1: 1 no_next_state" in out
    assert "waiting    1: 1 for what the user says next" in out
    assert "server     does not run" in out
    assert "learner    does not run" in out


def test_a_terminal_without_the_characters_shows_others(home: Path) -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "stereorl", "status", "--home", home],
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, ran.stderr
    assert "score      ?  -1.00" in ran.stdout


def test_status_as_json(cli, home: Path) -> None:
    facts = cli("status", "--home", home, "--json").json
    assert facts["funnel"]["trained"] == 1
    assert facts["funnel"]["dropped"] == {"no_next_state": 1}
    assert facts["version"] == 1
    assert facts["updates"] == {"published": 1, "rejected": 0, "abandoned": 0}
    assert facts["learner"] is None


def test_what_no_teacher_scores_and_what_is_drawn_again_is_told(cli, home: Path, capsys) -> None:
    with Store.open(f"sqlite:///{home / 'stereorl.db'}") as store:
        store.record_judgement("u1cc", Verdict(1, "", ()), [Hint("Be brief.", "user", True, "quoted")])
        store.record_unscored("u1cc", "hint_over_context")
        claim = store.claim(1, parent_version=1, replay=1)
        assert claim is not None
        store.finish_step(claim.step_id, "published", version=3, metrics={})
        trained, unscored = store.detail("t1aa"), store.detail("u1cc")
    out = cli("status", "--home", home).out
    assert "hinted     2, of which 1 scored by the teacher, and 1 hint_over_context cannot be" in out
    assert "trained    2 in 2 updates, which drew trained turns 1 times again" in out
    assert as_dict(trained, [])["replays"] == [3]
    assert as_dict(trained, [])["teacher"] == {"name": "base", "hint": trained.hints[0].text}
    assert (as_dict(unscored, [])["teacher"], as_dict(unscored, [])["unscored"]) == (
        None,
        "hint_over_context",
    )
    print_turn(Config(), trained, [], table=True)
    print_turn(Config(), unscored, [], table=True)
    out = capsys.readouterr().out
    assert "teacher  base, under: Too long." in out
    assert "replayed into version 3" in out
    assert "teacher  none (hint_over_context)" in out


def test_status_sees_running_processes(cli, home: Path) -> None:
    (home / "run").mkdir()
    (home / "run" / "serve.json").write_text(json.dumps({"pid": os.getpid(), "host": "127.0.0.1", "port": 9}))
    (home / "run" / "learn.lock").write_text(str(os.getpid()))
    out = cli("status", "--home", home).out
    assert "serves at http://127.0.0.1:9" in out
    assert f"runs (process {os.getpid()})" in out


def funnel(**changed: object) -> Funnel:
    plain = dict.fromkeys(("captured", "side", "judged", "hinted", "scored", "trained", "waiting"), 0)
    more = {"dropped": {}, "rewards": {}, "forks": 0, "sessions": 0, "steps": 0, "oldest_waiting_s": None}
    return Funnel(**{**plain, **more, **changed})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("found", "rewards", "begins"),
    [
        (funnel(), [], "Not yet: nothing was captured."),
        (funnel(captured=3, stages={"ready": 2}), [], "Not yet: no update so far; 2 of 8 samples are ready"),
        (funnel(captured=9, steps=1), [-1.0], "It trains: 1 update; too few"),
        (funnel(captured=40, steps=4), [-1.0, 0.0, 0.5], "Yes: the mean reward went from -1.00"),
        (funnel(captured=40, steps=4), [0.5, 0.5], "No sign of it: the mean reward went from +0.50"),
    ],
)
def test_is_it_learning_in_one_line(found: Funnel, rewards: list[float], begins: str) -> None:
    line = verdict(Config(), found, rewards)
    assert line.startswith(begins)
    assert "\n" not in line


def test_sessions_and_their_turns(cli, home: Path) -> None:
    out = cli("sessions", "--home", home).out
    assert "aaa1" in out
    assert "closed (done)" in out
    rows = cli("sessions", "--home", home, "--session", "aa", "--json").json
    assert [row["state"] for row in rows] == ["trained into version 1", "dropped: no_next_state"]
    assert rows[0]["hint"] == "Too long. Answer in one short sentence."


@pytest.mark.parametrize(("prefix", "says"), [("a", "2 sessions begin"), ("zz", "No session begins")])
def test_a_session_that_is_not_one_is_refused(cli, home: Path, prefix: str, says: str) -> None:
    ran = cli("sessions", "--home", home, "--session", prefix)
    assert ran.status == 2
    assert says in ran.err
    assert "Traceback" not in ran.err


def test_versions(cli, home: Path) -> None:
    rows = cli("versions", "--home", home, "--json").json
    assert [(row["version"], row["serves"], row["status"]) for row in rows] == [
        (0, False, "base"),
        (1, True, "published"),
        (2, False, "rejected"),
    ]
    assert "rejected" in cli("versions", "--home", home).out


def test_advantages_by_hand(home: Path) -> None:
    """reward -1, gaps -0.2, 0.1, -2 clipped to -1, 0.5: w_eval * r + w_dir * gap."""
    with Store.open(f"sqlite:///{home / 'stereorl.db'}") as store:
        trained, plain = store.detail("t1aa"), store.detail("u1cc")
    weights = {"weights.w_eval": 1.0, "weights.w_dir": 0.5, "objective.gap_clip": 1.0}
    found = advantages(load_config(None, weights).config, trained)
    assert [token["gap"] for token in found] == pytest.approx([-0.2, 0.1, -2.0, 0.5], abs=1e-6)
    assert [token["advantage"] for token in found] == pytest.approx([-1.1, -0.95, -1.5, -0.75], abs=1e-6)
    assert advantages(Config(), plain) == [{"gap": None, "advantage": None}]


@pytest.mark.model
def test_show_tells_everything_about_a_turn(cli, home: Path) -> None:
    out = cli("show", "t1", "--home", home, "--set", "weights.w_eval=1", "--set", "weights.w_dir=1").out
    assert "trained into version 1" in out
    assert "-1.20" in out  # the first token's advantage: without colour there is a table
    assert "vote     user words: -1 (correction)" in out
    assert "hint     Too long. Answer in one short sentence." in out
    assert "next     user: Too long." in out
    shown = cli("show", "t1", "--home", home, "--json").json
    assert [token["id"] for token in shown["tokens"]] == [10, 20, 30, 40]
    assert shown["verdict"] == {"reward": -1, "reason": "1 of 1"}
    assert cli("show", "u1", "--home", home).status == 0


def test_show_of_no_turn(cli, home: Path) -> None:
    ran = cli("show", "nope", "--home", home)
    assert (ran.status, ran.out) == (2, "")
    assert "nope" in ran.err


@pytest.mark.parametrize("command", ["status", "sessions", ("show", "t"), ("forget", "s")])
def test_an_empty_home_says_how_to_begin(cli, tmp_path: Path, command) -> None:
    ran = cli(*([command] if isinstance(command, str) else command), "--home", tmp_path)
    assert ran.status == 2
    assert "Start with 'stereorl up'" in ran.err
    assert not list(tmp_path.iterdir())


def test_config_prints_toml_that_loads_back(cli, tmp_path: Path) -> None:
    ran = cli(
        "config", "--home", tmp_path, "--set", "learn.lr=1e-3", "--set", "preset=code", "--model", "a 'b'"
    )
    tree = tomllib.loads(ran.out)
    assert tree["learn"]["lr"] == 1e-3
    assert "lr = 0.001  # command line" in ran.out
    assert "w_dir = 1.5  # preset code" in ran.out
    assert "# context_length is not set" in ran.out
    (tmp_path / "c.toml").write_text(ran.out)
    given = {"home": str(tmp_path), "learn.lr": 1e-3, "preset": "code", "model.name": "a 'b'"}
    assert load_config(tmp_path / "c.toml").config == load_config(None, given).config


@pytest.mark.parametrize(
    ("setting", "says"),
    [
        ("learn.lrr=1", "Did you mean learn.lr"),
        ("learn.lr", "is not KEY=VALUE"),
        ("learn.lr=fast", "Setting 'learn.lr'"),
        ("learn.batch_size=0", "greater than 0"),
    ],
)
def test_a_wrong_setting_is_one_message_and_status_2(cli, setting: str, says: str) -> None:
    ran = cli("config", "--set", setting)
    assert (ran.status, ran.out) == (2, "")
    assert says in ran.err
    assert ran.err.startswith("stereorl: ")


def test_small_writing() -> None:
    assert sparkline([-1, 0, 1, 5]) == "▁▅██"
    assert [duration(value) for value in (5, 300, 9000)] == ["5 s", "5 min", "2.5 h"]
    assert [shade(value) for value in (-1.0, -0.5, 0.0, 0.5, 1.0)] == [
        "white on red",
        "red",
        "default",
        "green",
        "white on green",
    ]
