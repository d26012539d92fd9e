"""Commands that change something, and the chat."""

from __future__ import annotations

import io
import json
import os
from pathlib import Path

import pytest
from rich.console import Console

from stereorl.cli.chat import Talk
from stereorl.cli.forget import describe
from stereorl.cli.options import parse_setting
from stereorl.store.records import Forgotten
from stereorl.store.store import Store
from stereorl.store.versions import Versions
from stereorl.study.user import connect
from tests.study.fake_server import fake_server


def test_rollback_and_promote(cli, home: Path) -> None:
    versions = Versions(home / "versions")
    assert "Version 0 serves instead of 1" in cli("rollback", 0, "--home", home).out
    assert versions.current() == 0
    assert cli("promote", 1, "--home", home).status == 0
    assert versions.current() == 1


def test_what_is_not_there_or_was_rejected_does_not_serve(cli, home: Path) -> None:
    for command, number, says in (("rollback", 7, "no version 7"), ("promote", 2, "rejected by the gate")):
        ran = cli(command, number, "--home", home)
        assert ran.status == 2
        assert says in ran.err
    assert Versions(home / "versions").current() == 1
    assert cli("promote", 2, "--home", home, "--force").status == 0
    assert Versions(home / "versions").current() == 2


@pytest.mark.parametrize("text", [b"", b"abc", b"\xff", b"9"])
def test_a_broken_current_is_shown_and_mended(cli, home: Path, text: bytes) -> None:
    (home / "versions" / "CURRENT").write_bytes(text)
    assert cli("status", "--home", home, "--json").json["version"] is None
    assert "what serves is not known" in cli("status", "--home", home).out
    assert not any(row["serves"] for row in cli("versions", "--home", home, "--json").json)
    assert "Version 1 serves. " in cli("rollback", 1, "--home", home).out
    assert Versions(home / "versions").current() == 1


def test_damaged_weights_are_not_set_to_serve(cli, home: Path) -> None:
    cli("rollback", 0, "--home", home)
    (home / "versions" / "v000001" / "adapter.bin").write_bytes(b"y")
    for command in ("rollback", "promote"):
        ran = cli(command, 1, "--home", home)
        assert ran.status == 2
        assert "adapter.bin has changed" in ran.err
    assert Versions(home / "versions").current() == 0


@pytest.mark.parametrize("command", [["chat"], ["rollback", "0"], ["import", "x"]])
def test_a_home_that_is_a_file_is_one_message(cli, tmp_path: Path, command: list[str]) -> None:
    file = tmp_path / "file"
    file.touch()
    ran = cli(*command, "--home", file)
    assert ran.status == 2
    assert str(file) in ran.err
    assert "Traceback" not in ran.err


def test_export_and_import(cli, home: Path, tmp_path: Path) -> None:
    file, other = tmp_path / "turns.jsonl", tmp_path / "other"
    assert "3 turns written" in cli("export", file, "--home", home).out
    assert "3 turns imported, 0 were there" in cli("import", file, "--home", other).out
    assert "0 turns imported, 3 were there" in cli("import", file, "--home", other).out
    assert "1 turns written" in cli("export", file, "--home", home, "--session", "ab").out


def test_a_bad_line_is_named_and_the_rest_is_imported(cli, home: Path, tmp_path: Path) -> None:
    file = tmp_path / "turns.jsonl"
    cli("export", file, "--home", home)
    file.write_text(file.read_text() + "{}\n")
    ran = cli("import", file, "--home", tmp_path / "other")
    assert ran.status == 1
    assert "3 turns imported" in ran.out
    assert "left out" in ran.err


def test_forget_asks_deletes_and_names_the_versions(cli, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("n\n"))
    assert cli("forget", "aa", "--home", home).status == 1
    ran = cli("forget", "aa", "--home", home, "--yes")
    assert "2 turns of session aaa1 deleted" in ran.out
    assert "stereorl rollback 0" in ran.out
    with Store.open(f"sqlite:///{home / 'stereorl.db'}") as store:
        assert [row.id for row in store.sessions()] == ["abb2"]


def test_forget_says_what_still_carries_traces() -> None:
    text = describe(Forgotten("s", 2, (4, 6), (9,), ("f",), False))
    assert "rollback 3" in text
    assert "update that is under way" in text
    assert "branched off it" in text
    assert "until the server and the learner have stopped" in text


def test_settings_are_toml_or_plain_text() -> None:
    assert parse_setting("learn.lr=1e-4") == ("learn.lr", 1e-4)
    assert parse_setting("learn.betas=[0.8, 0.9]") == ("learn.betas", [0.8, 0.9])
    assert parse_setting("model.name=org/name") == ("model.name", "org/name")
    assert parse_setting("model.name=a=b") == ("model.name", "a=b")
    assert parse_setting('store.url="x"') == ("store.url", "x")


# --- chat ---


def test_chat_without_a_server_says_how_to_start_one(cli, tmp_path: Path) -> None:
    ran = cli("chat", "--home", tmp_path)
    assert ran.status == 2
    assert "stereorl up" in ran.err


def test_chat_streams_remembers_and_gives_feedback() -> None:
    out = io.StringIO()
    with fake_server(lambda messages: (f"Reply [{len(messages)}]", "stop")) as (url, asked):
        talk = Talk(connect(url), Console(file=out, width=100), max_tokens=9)
        assert talk.take("/good")  # nothing to talk about yet
        for line in ("Hello", "And then?", "/good", "/bad", "/fix Say it shorter", "/new", "Again", "/what"):
            assert talk.take(line)
        assert not talk.take("/quit")
    bodies = asked.bodies()
    assert [len(body["messages"]) for body in bodies] == [1, 3, 1]
    assert bodies[1]["messages"][1] == {"role": "assistant", "content": "Reply [1] "}
    assert {body["max_tokens"] for body in bodies} == {9}
    assert asked.bodies("/v1/feedback") == [
        {"turn_id": "chatcmpl-turn2", "score": 1},
        {"turn_id": "chatcmpl-turn2", "score": -1},
        {"turn_id": "chatcmpl-turn2", "score": -1, "correction": "Say it shorter"},
    ]
    assert "Reply [3]" in out.getvalue()
    assert "no reply to talk about" in out.getvalue()


def test_chat_reads_lines_until_the_end(cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with fake_server(lambda messages: ("Hi there", "stop")) as (url, asked):
        (tmp_path / "run").mkdir()
        facts = {"pid": os.getpid(), "host": "127.0.0.1", "port": int(url.rsplit(":", 1)[1])}
        (tmp_path / "run" / "serve.json").write_text(json.dumps(facts))
        monkeypatch.setattr("sys.stdin", io.StringIO("Hello\n"))
        ran = cli("chat", "--home", tmp_path)
    assert ran.status == 0
    assert "Hi there" in ran.out
    assert len(asked.bodies()) == 1
