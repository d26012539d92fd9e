"""A home folder with a store and versions in it, and the command line as a function."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stereorl.cli.main import main
from stereorl.data import Hint, Message, NextState, Sampling, TeacherScore, Turn, Verdict, Vote
from stereorl.store.records import NewSession, SessionEvent
from stereorl.store.store import Store
from stereorl.store.versions import Manifest, Versions


@dataclass(frozen=True)
class Ran:
    status: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Ran]:
    monkeypatch.setenv("COLUMNS", "200")
    for name in ("STEREORL_HOME", "STEREORL_CONFIG"):
        monkeypatch.delenv(name, raising=False)

    def run(*arguments: object) -> Ran:
        capsys.readouterr()
        try:
            main([str(argument) for argument in arguments])
            status = 0
        except SystemExit as ended:
            status = int(ended.code or 0)
        captured = capsys.readouterr()
        return Ran(status, captured.out, captured.err)

    return run


def turn(
    turn_id: str, session: str, index: int, messages: tuple[Message, ...], reply: str, ids: list[int]
) -> Turn:
    n = len(ids)
    return Turn(
        turn_id=turn_id,
        session_id=session,
        index=index,
        kind="main",
        messages=messages,
        reply=Message("assistant", reply),
        prompt_ids=np.arange(3, dtype=np.int32),
        response_ids=np.array(ids, np.int32),
        log_probs=np.full(n, -1.0, np.float32),
        versions=np.zeros(n, np.int32),
        sampling=Sampling(),
        finish_reason="length",
        model="m",
        created_at=1000.0 + index,
    )


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """Session `aaa1` with a corrected and trained turn and a last one without a next state; session `abb2`, open."""
    folder = tmp_path / "home"
    folder.mkdir()
    asked = Message("user", "How do I boil an egg?")
    first = turn("t1aa", "aaa1", 0, (asked,), "Take [a] pan", [10, 20, 30, 40])
    said = Message("user", "Too long. Answer in one short sentence.")
    second = turn("t2bb", "aaa1", 1, (asked, first.reply, said), "Boil it.", [50, 60])
    with Store.open(f"sqlite:///{folder / 'stereorl.db'}") as store:
        store.put(
            [
                NewSession("aaa1", 1000.0, "new", None),
                first,
                NextState("t1aa", "reply", (said,), 1001.0),
                second,
            ]
        )
        store.put([SessionEvent("aaa1", "closed", "done", 1002.0), NewSession("abb2", 1003.0, "new", None)])
        store.put([turn("u1cc", "abb2", 0, (asked,), "Hm", [7])])
        votes = (Vote("user words", -1, "correction"),)
        store.record_judgement(
            "t1aa", Verdict(-1, "1 of 1", votes), [Hint(said.content, "user", True, "quoted")]
        )
        scores = np.array([-1.2, -0.9, -3.0, -0.5], np.float32)
        store.record_teacher_score(TeacherScore("t1aa", said.content, "base", 0.7, scores))
        claim = store.claim(1, parent_version=0)
        assert claim is not None
        store.finish_step(
            claim.step_id, "published", version=1, metrics={"reward_mean": -1.0, "odd": float("nan")}
        )
        store.drop("t2bb", "judge", "no_next_state")
    versions = Versions(folder / "versions")
    for number, status in ((1, "published"), (2, "rejected")):
        stage = versions.stage()
        (stage / "adapter.bin").write_bytes(b"x")
        versions.publish(stage, manifest(number, status))
    versions.set_current(1)
    return folder


def manifest(number: int, status: Any) -> Manifest:
    return Manifest(
        version=number,
        parent=number - 1,
        step_id=number,
        created_at=1000.0,
        adapter="lora",
        base_model="m",
        base_digest="d",
        metrics={"kl": 0.1},
        status=status,
    )
