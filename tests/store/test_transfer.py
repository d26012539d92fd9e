"""JSONL out and in is the same store; bad lines are named and the good ones kept; Parquet."""

from __future__ import annotations

import dataclasses
import io
import json
import math
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stereorl.data import Feedback, Message, ToolCall
from stereorl.errors import ConfigError, NotFoundError, StoreError
from stereorl.store import NewSession, SessionEvent, Store
from stereorl.store.transfer import export_jsonl, export_parquet, import_jsonl
from tests.store.build import (
    BAD,
    GOOD,
    HINT,
    REFUSED,
    fill,
    make_ready,
    make_turn,
    same_turn,
    score_of,
    url_of,
)


@pytest.fixture
def other(tmp_path: Path, template: Path) -> Iterator[Store]:
    (tmp_path / "other").mkdir()
    shutil.copy(template, tmp_path / "other")
    with Store.open(url_of(tmp_path / "other")) as opened:
        yield opened
        assert opened.integrity_check() == "ok"


def _populate(store: Store) -> list[str]:
    fill(store, ["scored", "judged", "dropped", "waiting"])
    store.record_judgement("scored", BAD, [REFUSED, HINT])
    store.record_teacher_score(score_of(store.turn("scored")))
    store.record_judgement("judged", GOOD, [])
    store.drop("dropped", "judge", "too_long")
    call = ToolCall("c", "ls", "{}")
    odd = make_turn(
        "odd \ud800 \0 🙂",
        "s1",
        messages=(Message("assistant", "", None, (call,)), Message("tool", "\ud800", "ls", (), "c")),
        tools=({"type": "function", "function": {"name": "ls"}},),
        finish_reason="cancelled",
        log_probs=np.array([-1e-45, -0.1, -3.4e38, -0.0, 0, -1, -2], np.float32),
    )
    store.put([NewSession("s1", 2.0, "prefix", "s0"), odd, Feedback(odd.turn_id, 1, None, 3.0)])
    store.put([make_turn("side", "s1", kind="side", index=1), SessionEvent("s1", "closed", "done", 9.0)])
    return ["scored", "judged", "dropped", "waiting", odd.turn_id, "side"]


def _facts(store: Store, turn_id: str) -> dict[str, Any]:
    detail = store.detail(turn_id)
    fields = {f.name: getattr(detail, f.name) for f in dataclasses.fields(detail)}
    scores = [(s.hint, s.teacher, s.temperature, s.log_probs.tobytes()) for s in fields.pop("teacher_scores")]
    return {**{k: v for k, v in fields.items() if k != "turn"}, "scores": scores}


def test_export_and_import_make_the_same_store(store: Store, other: Store, tmp_path: Path) -> None:
    keys = _populate(store)
    file = tmp_path / "out.jsonl"
    assert export_jsonl(store, file) == 6
    report = import_jsonl(other, file)
    assert (report.imported, report.skipped, report.bad) == (6, 0, ())
    for key in keys:
        assert same_turn(store.turn(key), other.turn(key))
        assert _facts(store, key) == _facts(other, key)
    assert store.sessions() == other.sessions()
    drop_age = {"oldest_waiting_s": None}
    assert dataclasses.replace(store.funnel(), **drop_age) == dataclasses.replace(other.funnel(), **drop_age)  # type: ignore[arg-type]
    again = import_jsonl(other, file)
    assert (again.imported, again.skipped) == (0, 6)
    assert store.sessions() == other.sessions()
    first, second = io.StringIO(), io.StringIO()
    assert export_jsonl(store, first) == export_jsonl(other, second) == 6
    assert first.getvalue() == second.getvalue()


def test_one_session(store: Store) -> None:
    _populate(store)
    out = io.StringIO()
    assert export_jsonl(store, out, "s1") == 2
    assert [json.loads(line)["type"] for line in out.getvalue().splitlines()] == ["session", "turn", "turn"]
    with pytest.raises(NotFoundError, match="nowhere"):
        export_jsonl(store, out, "nowhere")


@pytest.mark.parametrize("retrain", [False, True])
def test_trained_turns_train_again_only_if_asked(
    store: Store, other: Store, tmp_path: Path, retrain: bool
) -> None:
    make_ready(store, ["t0"])
    claim = store.claim(1, parent_version=0)
    assert claim is not None
    store.finish_step(claim.step_id, "published", version=3, metrics={})
    export_jsonl(store, tmp_path / "out.jsonl")
    import_jsonl(other, tmp_path / "out.jsonl", retrain=retrain)
    assert other.ready().n == retrain
    assert other.detail("t0").drop == (None if retrain else "trained_elsewhere")


BAD_LINES = {
    "not JSON": "{oops",
    "not UTF-8": b"\xff\xfe{}",
    "not an object": "[1, 2]",
    "another type": '{"type": "version"}',
    "deep": "[" * 100_000,
    "a missing field": {"reply": None, "-": 1},
    "an unknown field": {"colour": "red"},
    "short log-probs": {"log_probs": [-1.0]},
    "a positive log-prob": {"log_probs": [0.5] * 7},
    "a log-prob that is no number": {"log_probs": [math.nan] * 7},
    "a log-prob beyond float32": {"log_probs": [-1e300] * 7},
    "an id beyond int32": {"response_ids": [2**31] * 7},
    "ids as text": {"response_ids": ["1"] * 7},
    "ids as truth values": {"versions": [True] * 7},
    "an unknown role": {"reply": {"role": "narrator", "content": "x"}},
    "a reward of 2": {"verdict": {"reward": 2, "reason": "", "votes": []}},
    "a reward of true": {"verdict": {"reward": True, "reason": "", "votes": []}},
    "a hint without verdict": {"hints": [{"text": "x", "source": "user", "accepted": True, "reason": ""}]},
    "a short teacher score": {
        "verdict": {"reward": 1, "reason": "", "votes": []},
        "teacher_score": {"hint": "x", "teacher": "base", "temperature": 1, "log_probs": [-1.0]},
    },
    "an empty id": {"turn_id": ""},
    "a huge index": {"index": 2**80},
    "an endless time": {"created_at": math.inf},
}


@pytest.mark.parametrize("name", BAD_LINES)
def test_bad_lines_are_named_and_good_ones_kept(
    store: Store, other: Store, tmp_path: Path, name: str
) -> None:
    fill(store, ["a", "b", "c"])
    out = io.StringIO()
    export_jsonl(store, out)
    lines = out.getvalue().splitlines()
    change = BAD_LINES[name]
    if isinstance(change, dict):
        change = json.dumps({**json.loads(lines[2]), **change})
    raw = [line.encode() for line in lines]
    raw[2] = change if isinstance(change, bytes) else change.encode()
    (tmp_path / "in.jsonl").write_bytes(b"\n".join([raw[0], b"", *raw[1:]]))
    report = import_jsonl(other, tmp_path / "in.jsonl")
    assert (report.imported, [bad.number for bad in report.bad]) == (2, [4])
    assert report.bad[0].reason
    assert other.session_turns("s0") == ["a", "c"]


def test_turns_without_their_session_line(store: Store, other: Store, tmp_path: Path) -> None:
    fill(store, ["a"])
    out = io.StringIO()
    export_jsonl(store, out)
    (tmp_path / "in.jsonl").write_text(out.getvalue().splitlines()[1])
    assert import_jsonl(other, tmp_path / "in.jsonl").imported == 1
    assert [row.id for row in other.sessions()] == ["s0"]


def test_files_that_cannot_be(store: Store, tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="cannot be read: No such file"):
        import_jsonl(store, tmp_path / "none")
    with pytest.raises(StoreError, match="cannot be written: No such file"):
        export_jsonl(store, tmp_path / "none" / "out.jsonl")
    assert list(tmp_path.glob("*.part")) == []


def test_an_export_that_fails_leaves_the_old_file(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(store, ["a"])
    target = tmp_path / "out.jsonl"
    target.write_text("old")
    monkeypatch.setattr("stereorl.store.transfer.turn_line", lambda detail: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        export_jsonl(store, target)
    assert target.read_text() == "old"
    assert [file for file in tmp_path.iterdir() if "part" in file.name] == []


def test_parquet(store: Store, tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    keys = _populate(store)
    assert export_parquet(store, tmp_path / "out.parquet") == 6
    table = parquet.read_table(tmp_path / "out.parquet")
    rows = {row["turn_id"]: row for row in table.to_pylist()}
    assert len(rows) == len(keys)
    turn = store.turn("scored")
    assert np.array(rows["scored"]["log_probs"], np.float32).tobytes() == turn.log_probs.tobytes()
    assert rows["scored"]["response_ids"] == turn.response_ids.tolist()
    assert (rows["scored"]["reward"], rows["scored"]["hint"]) == (-1, HINT.text)
    assert (rows["waiting"]["reward"], rows["waiting"]["teacher_log_probs"]) == (None, None)
    assert json.loads(rows["judged"]["messages"])[0] == {"role": "system", "content": "Be kind."}


def test_parquet_without_pyarrow(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ConfigError, match=r"pip install 'stereorl\[parquet\]'"):
        export_parquet(store, tmp_path / "out.parquet")
