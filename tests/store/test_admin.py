"""The funnel adds up; forgetting removes everything of one session and nothing of another."""

from __future__ import annotations

from pathlib import Path

import pytest

from stereorl.data import Feedback, Message
from stereorl.errors import NotFoundError
from stereorl.store import NewSession, SessionEvent, Store, schema
from tests.store.build import BAD, GOOD, HINT, MUTE, fill, followed, make_ready, make_turn, score_of, url_of


def test_funnel_counts_each_stage(store: Store) -> None:
    fill(store, ["trained", "ready", "score", "mute", "judge", "dropped"])
    store.put(
        [NewSession("s1", 2.0, "prefix", "s0"), make_turn("new", "s1"), make_turn("side", "s1", kind="side")]
    )
    store.record_judgement("trained", GOOD, [])
    claim = store.claim(1, parent_version=0)
    assert claim is not None
    store.finish_step(claim.step_id, "published", version=1, metrics={})
    store.record_judgement("ready", BAD, [HINT])
    store.record_teacher_score(score_of(store.turn("ready")))
    store.record_judgement("score", BAD, [HINT])
    store.record_judgement("mute", MUTE, [])
    store.drop("dropped", "judge", "too_long")
    funnel = store.funnel()
    assert (funnel.captured, funnel.side, funnel.judged, funnel.hinted, funnel.scored) == (7, 1, 4, 2, 1)
    assert (funnel.trained, funnel.waiting, dict(funnel.dropped)) == (1, 5, {"too_long": 1})
    assert dict(funnel.rewards) == {-1: 2, 0: 0, 1: 1}
    assert (funnel.forks, funnel.sessions, funnel.steps) == (1, 2, 1)
    assert (dict(funnel.unscored), funnel.replayed) == ({}, 0)
    assert dict(funnel.stages) == {"captured": 1, "judge": 1, "ready": 1, "score": 1, "signalless": 1}
    assert funnel.oldest_waiting_s is not None
    assert 0 <= funnel.oldest_waiting_s < 60


def test_an_empty_store_has_an_empty_funnel(store: Store) -> None:
    funnel = store.funnel()
    assert (funnel.captured, funnel.waiting, funnel.oldest_waiting_s) == (0, 0, None)
    assert store.score_over_time() == []
    assert store.claim(4, parent_version=0) is None
    assert store.steps() == []  # a claim of nothing leaves no step


def _counts(store: Store) -> dict[str, int]:
    with store._engine.connect() as connection:
        return {
            name: int(
                connection.execute(schema.sa.select(schema.sa.func.count()).select_from(table)).scalar_one()
            )
            for name, table in schema.metadata.tables.items()
        }


def _whole_session(store: Store, session_id: str, keys: list[str], shared: tuple[Message, ...]) -> None:
    """A session with a row in every table that can hold one."""
    tools = ({"type": "function", "function": {"name": f"tool of {session_id}"}},)
    secret = Message("user", f"secret of {session_id}")
    turns = [
        make_turn(k, session_id, messages=(*shared, secret), tools=tools, index=n) for n, k in enumerate(keys)
    ]
    store.put(
        [NewSession(session_id, 1.0, "new"), *turns, *(followed(k, f"no, {session_id}!") for k in keys)]
    )
    store.put(
        [
            Feedback(keys[0], -1, f"words of {session_id}", 1.0),
            SessionEvent(session_id, "closed", "done", 2.0),
        ]
    )
    store.record_judgement(keys[0], BAD, [HINT])
    store.record_teacher_score(score_of(store.turn(keys[0])))
    store.record_judgement(keys[1], GOOD, [])
    store.record_judgement(keys[2], MUTE, [HINT])
    store.record_unscored(keys[2], "hint_over_context")


def test_forgetting_removes_all_of_a_session_and_names_its_versions(store: Store) -> None:
    shared = (Message("system", "Be kind."), Message("user", "Hello"))
    _whole_session(store, "keep", ["k0", "k1", "k2"], shared)
    before = _counts(store)
    kept = [store.turn(key) for key in ("k0", "k1", "k2")]
    _whole_session(store, "go", ["g0", "g1", "g2"], shared)
    store.put([NewSession("fork", 3.0, "prefix", "go")])
    for outcome in ("published", None):
        claim = store.claim(2, parent_version=0)
        assert claim is not None
        if outcome:
            store.finish_step(claim.step_id, "abandoned", version=None, metrics={})
    first, last = store.steps()[0].step_id, store.steps()[1].step_id
    store.finish_step(last, "published", version=4, metrics={})
    held = store.claim(2, parent_version=4)
    assert held is not None
    assert {sample.turn.session_id for sample in held.samples} == {"go"}
    forgotten = store.forget("go")
    assert (forgotten.turns, forgotten.versions, forgotten.open_steps) == (3, (), (held.step_id,))
    assert forgotten.forks == ("fork",)
    store.finish_step(held.step_id, "published", version=5, metrics={})  # it was in flight
    after = _counts(store)
    steps = ("train_step", "step_result", "use", "version", "session", "session_state", "sample_state")
    assert {k: v for k, v in after.items() if k not in steps} == {
        k: v for k, v in before.items() if k not in steps
    }
    assert [turn.messages for turn in kept] == [store.turn(key).messages for key in ("k0", "k1", "k2")]
    assert store.forget("keep").versions == (4,)
    left = {name for name, n in _counts(store).items() if n}
    assert left == {"session", "session_state", "train_step", "step_result", "version"}
    assert first < last
    with pytest.raises(NotFoundError, match="go"):
        store.forget("go")


def test_forgotten_words_are_gone_from_the_files(tmp_path: Path) -> None:
    with Store.open(url_of(tmp_path)) as store:
        _whole_session(store, "go", ["g0", "g1", "g2"], ())
        long = Message("user", "PASSWORD-" + "hunter2 " * 3000)
        store.put([make_turn("g3", "go", messages=(long,))])
        make_ready(store, ["k0"], "keep")
        assert store.forget("go").purged
        data = b"".join(file.read_bytes() for file in tmp_path.iterdir())
        assert b"secret of go" not in data
        assert b"words of go" not in data
        assert b"hunter2" not in data
        assert b"Question k0?" in data
        assert store.integrity_check() == "ok"
