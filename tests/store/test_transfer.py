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
    MUTE,
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
    fill(store, ["scored", "judged", "dropped", "waiting", "topped", "unscored", "lost"])
    store.record_judgement("scored", BAD, [REFUSED, HINT])
    store.record_teacher_score(score_of(store.turn("scored")))
    store.record_judgement("judged", GOOD, [])
    store.drop("dropped", "judge", "too_long")
    for key, verdict in (("topped", BAD), ("unscored", BAD), ("lost", MUTE)):
        store.record_judgement(key, verdict, [HINT])
    ids, logps = np.arange(14).reshape(7, 2), np.linspace(-3, -1, 14).reshape(7, 2)
    top = {"top_ids": ids.astype(np.int32), "top_log_probs": logps.astype(np.float32)}
    store.record_teacher_score(dataclasses.replace(score_of(store.turn("topped")), **top))  # type: ignore[arg-type]
    store.record_unscored("unscored", "hint_over_context")
    store.record_unscored("lost", "teacher_temperature")
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
    return [
        "scored",
        "judged",
        "dropped",
        "waiting",
        "topped",
        "unscored",
        "lost",
        odd.turn_id,
        "side",
    ]


def _bits(array: Any) -> Any:
    return None if array is None else (array.shape, array.dtype, array.tobytes())


def _facts(store: Store, turn_id: str) -> dict[str, Any]:
    detail = store.detail(turn_id)
    fields = {f.name: getattr(detail, f.name) for f in dataclasses.fields(detail)}
    scores = [
        (s.hint, s.teacher, s.temperature, s.log_probs.tobytes(), _bits(s.top_ids), _bits(s.top_log_probs))
        for s in fields.pop("teacher_scores")
    ]
    return {**{k: v for k, v in fields.items() if k != "turn"}, "scores": scores}


def test_export_and_import_make_the_same_store(store: Store, other: Store, tmp_path: Path) -> None:
    keys = _populate(store)
    file = tmp_path / "out.jsonl"
    assert export_jsonl(store, file) == 9
    report = import_jsonl(other, file)
    assert (report.imported, report.skipped, report.bad) == (9, 0, ())
    for key in keys:
        assert same_turn(store.turn(key), other.turn(key))
        assert _facts(store, key) == _facts(other, key)
    assert store.sessions() == other.sessions()
    drop_age = {"oldest_waiting_s": None}
    assert dataclasses.replace(store.funnel(), **drop_age) == dataclasses.replace(other.funnel(), **drop_age)  # type: ignore[arg-type]
    again = import_jsonl(other, file)
    assert (again.imported, again.skipped) == (0, 9)
    assert store.sessions() == other.sessions()
    first, second = io.StringIO(), io.StringIO()
    assert export_jsonl(store, first) == export_jsonl(other, second) == 9
    assert first.getvalue() == second.getvalue()


def test_lines_without_the_newer_fields_are_read(store: Store, other: Store, tmp_path: Path) -> None:
    _populate(store)
    out = io.StringIO()
    export_jsonl(store, out)
    with (tmp_path / "old.jsonl").open("w") as file:
        for line in map(json.loads, out.getvalue().splitlines()):
            line.pop("unscored", None)
            for name in ("top_ids", "top_log_probs"):
                (line.get("teacher_score") or {}).pop(name, None)
            file.write(json.dumps(line) + "\n")
    report = import_jsonl(other, tmp_path / "old.jsonl")
    assert (report.imported, report.bad) == (9, ())
    assert other.detail("topped").teacher_scores[0].top_ids is None
    assert other.detail("unscored").stage == "score"  # asked again


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


def _scored(**more: Any) -> dict[str, Any]:
    score = {"hint": "x", "teacher": "base", "temperature": 1, "log_probs": [-1.0] * 7, **more}
    return {"verdict": {"reward": 1, "reason": "", "votes": []}, "teacher_score": score}


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
    "a top row too many": _scored(top_ids=[[1]] * 8, top_log_probs=[[-1.0]] * 8),
    "ragged top rows": _scored(top_ids=[[1]] * 6 + [[1, 2]], top_log_probs=[[-1.0]] * 7),
    "empty top rows": _scored(top_ids=[[]] * 7, top_log_probs=[[]] * 7),
    "top ids alone": _scored(top_ids=[[1]] * 7),
    "scored and unscored": {**_scored(), "unscored": "hint_over_context"},
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
    assert export_parquet(store, tmp_path / "out.parquet") == 9
    table = parquet.read_table(tmp_path / "out.parquet")
    rows = {row["turn_id"]: row for row in table.to_pylist()}
    assert len(rows) == len(keys)
    turn = store.turn("scored")
    assert np.array(rows["scored"]["log_probs"], np.float32).tobytes() == turn.log_probs.tobytes()
    assert rows["scored"]["response_ids"] == turn.response_ids.tolist()
    assert (rows["scored"]["reward"], rows["scored"]["hint"]) == (-1, HINT.text)
    assert rows["topped"]["teacher_top_ids"] == np.arange(14).reshape(7, 2).tolist()
    assert (rows["unscored"]["unscored"], rows["scored"]["teacher_top_ids"]) == ("hint_over_context", None)
    assert (rows["waiting"]["reward"], rows["waiting"]["teacher_log_probs"]) == (None, None)
    assert json.loads(rows["judged"]["messages"])[0] == {"role": "system", "content": "Be kind."}


def test_parquet_without_pyarrow(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ConfigError, match=r"pip install 'stereorl\[parquet\]'"):
        export_parquet(store, tmp_path / "out.parquet")
