"""Hints that cannot be scored, a bounded buffer, the teacher's likeliest ids, and trained turns drawn again."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stereorl.data import Sample, TeacherScore
from stereorl.errors import MisalignedError, NotFoundError
from stereorl.store import Claim, Store, replays
from tests.store.build import BAD, GOOD, HINT, MUTE, fill, make_ready, make_turn, score_of, url_of

REASON = "hint_over_context"


def adds_up(store: Store) -> bool:
    funnel = store.funnel()
    return funnel.captured == funnel.trained + funnel.waiting + sum(funnel.dropped.values())


def names(samples: Sequence[Sample]) -> list[str]:
    return [sample.turn.turn_id for sample in samples]


def train(store: Store, n: int, *, parent: int = 0, outcome: Any = "published", **options: Any) -> Claim:
    claim = store.claim(n, parent_version=parent, **options)
    assert claim is not None
    store.finish_step(claim.step_id, outcome, version=claim.step_id, metrics={})
    return claim


def test_without_a_teacher_the_reward_trains_alone(store: Store) -> None:
    fill(store, ["rewarded", "mute"])
    store.record_judgement("rewarded", BAD, [HINT])
    store.record_judgement("mute", MUTE, [HINT])
    store.record_unscored("rewarded", REASON)
    store.record_unscored("mute", REASON)
    assert store.score_queue() == []
    rewarded, mute = store.detail("rewarded"), store.detail("mute")
    assert (rewarded.stage, rewarded.drop, rewarded.unscored) == ("ready", None, REASON)
    assert (mute.stage, mute.drop, mute.drop_stage, mute.unscored) == (None, REASON, "score", REASON)
    assert dict(store.funnel().unscored) == {REASON: 2}
    assert adds_up(store)
    claim = store.claim(8, parent_version=0)
    assert claim is not None
    ((reward, hint, taught),) = [(s.reward, s.hint, s.has_teacher) for s in claim.samples]
    assert (reward, hint, taught) == (-1.0, None, False)


def test_only_a_turn_that_waits_for_its_teacher_can_be_unscored(store: Store) -> None:
    fill(store, ["judge", "scored", "plain", "final"])
    for key, hints in (("scored", [HINT]), ("plain", []), ("final", [HINT])):
        store.record_judgement(key, BAD, hints)
    store.record_teacher_score(score_of(store.turn("scored")))
    store.drop("final", "score", "other")
    for key in ("judge", "scored", "plain", "final"):
        before = store.detail(key).stage
        store.record_unscored(key, REASON)
        assert (store.detail(key).unscored, store.detail(key).stage) == (None, before)
    with pytest.raises(NotFoundError):
        store.record_unscored("t9", REASON)


def test_what_was_found_unscorable_stays_so(store: Store) -> None:
    fill(store, ["t0"])
    store.record_judgement("t0", BAD, [HINT])
    store.record_unscored("t0", REASON)
    store.record_unscored("t0", "another")
    store.record_teacher_score(score_of(store.turn("t0")))
    detail = store.detail("t0")
    assert (detail.unscored, detail.teacher_scores) == (REASON, ())


def test_the_oldest_leave_a_full_buffer_by_name(store: Store) -> None:
    make_ready(store, [f"t{k}" for k in range(6)])
    held = store.claim(1, parent_version=0)
    assert held is not None
    assert store.trim_ready(5) == 0
    assert store.trim_ready(2) == 3
    assert names(held.samples) == ["t0"]
    assert [store.detail(f"t{k}").drop for k in range(6)] == [None, *["buffer_full"] * 3, None, None]
    assert store.detail("t1").drop_stage == "ready"
    assert store.trim_ready(2) == 0
    assert adds_up(store)
    rest = store.claim(8, parent_version=0)
    assert rest is not None
    assert names(rest.samples) == ["t4", "t5"]


def topped(store: Store, key: str, k: int = 3, **changes: Any) -> TeacherScore:
    turn = store.turn(key)
    shape = (len(turn.response_ids), k)
    fields: dict[str, Any] = {
        "log_probs": turn.log_probs,
        "top_ids": np.arange(shape[0] * k, dtype=np.int32).reshape(shape),
        "top_log_probs": -np.arange(1, shape[0] * k + 1, dtype=np.float32).reshape(shape) / 7,
    }
    return TeacherScore(key, HINT.text, "base", 0.6, **{**fields, **changes})


def test_likeliest_ids_come_back_to_the_bit(store: Store) -> None:
    fill(store, ["t0", "t1"])
    for key in ("t0", "t1"):
        store.record_judgement(key, BAD, [HINT])
    score = topped(store, "t0")
    store.record_teacher_score(score)
    store.record_teacher_score(score_of(store.turn("t1")))
    claim = store.claim(2, parent_version=0)
    assert claim is not None
    first, second = claim.samples
    kept = store.detail("t0").teacher_scores[0]
    for ids, log_probs in (
        (first.teacher_top_ids, first.teacher_top_log_probs),
        (kept.top_ids, kept.top_log_probs),
    ):
        assert ids is not None
        assert log_probs is not None
        assert (ids.dtype, log_probs.dtype) == (np.int32, np.float32)
        assert np.array_equal(ids, score.top_ids)  # type: ignore[arg-type]
        assert np.array_equal(log_probs, score.top_log_probs)  # type: ignore[arg-type]
    assert (second.teacher_top_ids, second.teacher_top_log_probs) == (None, None)


@pytest.mark.parametrize(
    "changes",
    [
        {"top_ids": np.zeros((6, 3), np.int32)},
        {"top_log_probs": np.zeros((7, 2), np.float32)},
        {"top_ids": np.zeros((7, 0), np.int32), "top_log_probs": np.zeros((7, 0), np.float32)},
        {"top_log_probs": np.full((7, 3), np.nan, np.float32)},
        {"top_ids": np.full((7, 3), 2**40)},
        {"top_ids": np.zeros(21, np.int32), "top_log_probs": np.zeros(21, np.float32)},
    ],
)
def test_likeliest_ids_that_do_not_fit_are_refused(store: Store, changes: dict[str, Any]) -> None:
    fill(store, ["t0"])
    store.record_judgement("t0", BAD, [HINT])
    with pytest.raises(MisalignedError, match="t0"):
        store.record_teacher_score(topped(store, "t0", **changes))
    assert len(store.score_queue()) == 1


def test_trained_turns_are_drawn_again_beside_new_ones(store: Store) -> None:
    make_ready(store, ["a", "b", "c", "rejected", "abandoned", "new"])
    train(store, 3)
    train(store, 1, outcome="rejected")
    let_go = train(store, 1, outcome="abandoned")
    claim = store.claim(1, parent_version=1, replay=8)
    assert claim is not None
    assert names(claim.samples) == names(let_go.samples) == ["abandoned"]
    assert sorted(names(claim.replayed)) == ["a", "b", "c"]
    assert all(sample.replayed for sample in claim.replayed)
    assert not any(sample.replayed for sample in claim.samples)
    assert (store.funnel().trained, store.funnel().replayed) == (3, 0)  # not published yet
    store.finish_step(claim.step_id, "published", version=9, metrics={})
    funnel = store.funnel()
    assert (funnel.trained, funnel.replayed) == (4, 3)  # each is trained once, however often it is drawn
    assert adds_up(store)
    assert store.detail("a").replays == (9,)
    assert (store.detail("a").version, store.detail("a").use) == (1, 1)
    assert store.steps()[-1].n == 1


def test_replay_alone_never_trains(store: Store) -> None:
    make_ready(store, ["a"])
    train(store, 1)
    assert store.claim(4, parent_version=1, replay=4) is None
    assert len(store.steps()) == 1


def test_no_replay_unless_asked_for(store: Store) -> None:
    make_ready(store, ["a", "b"])
    train(store, 1)
    claim = store.claim(1, parent_version=1)
    assert claim is not None
    assert claim.replayed == ()


def test_a_step_draws_the_same_turns_whenever_it_is_claimed(tmp_path: Path) -> None:
    with Store.open(url_of(tmp_path)) as store:
        make_ready(store, [f"t{k:02d}" for k in range(24)])
        train(store, 20)
    drawn = []
    for number in range(2):
        (tmp_path / f"copy{number}").mkdir()
        shutil.copy(tmp_path / "stereorl.db", tmp_path / f"copy{number}")
        with Store.open(url_of(tmp_path / f"copy{number}")) as copy:
            claims = [copy.claim(1, parent_version=1, replay=5) for _ in range(2)]
            drawn.append([names(claim.replayed) for claim in claims if claim])
    assert drawn[0] == drawn[1]
    assert drawn[0][0] != drawn[0][1]  # the next step draws others
    assert all(len(set(keys)) == 5 for keys in drawn[0])


def test_all_trained_turns_are_drawn_alike(store: Store) -> None:
    make_ready(store, [f"t{k:02d}" for k in range(10)])
    train(store, 10)
    make_ready(store, [f"n{k:03d}" for k in range(100)], "s1")
    counts: Counter[str] = Counter()
    for _ in range(100):
        claim = store.claim(1, parent_version=1, replay=2)  # left open: never drawn from
        assert claim is not None
        counts.update(names(claim.replayed))
    assert sum(counts.values()) == 200
    assert sorted(counts) == [f"t{k:02d}" for k in range(10)]
    assert max(counts.values()) < 45  # 20 expected, 4.2 the deviation
    assert min(counts.values()) > 4


def test_the_window_is_of_those_trained_last(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replays, "WINDOW", 3)
    make_ready(store, [f"t{k}" for k in range(7)])
    for _ in range(3):
        train(store, 2)
    claim = store.claim(1, parent_version=1, replay=9)
    assert claim is not None
    assert sorted(names(claim.replayed)) == ["t3", "t4", "t5"]


def test_none_with_a_token_of_an_older_version(store: Store) -> None:
    make_ready(store, ["new"])
    for key, versions in (("old", [1] * 7), ("mixed", [5, 5, 2, 5, 5, 5, 5]), ("fresh", [3] * 7)):
        turn = make_turn(key, "s0", versions=np.array(versions, np.int32))
        store.put([turn])
        store.record_judgement(key, GOOD, [])
    train(store, 4, parent=5)
    make_ready(store, ["next"], "s1")
    claim = store.claim(1, parent_version=6, replay=9, oldest_version=3)
    assert claim is not None
    assert names(claim.replayed) == ["fresh"]


def test_none_that_was_forgotten_and_forgetting_names_what_replayed_it(store: Store) -> None:
    make_ready(store, ["gone"], "go")
    make_ready(store, ["k0", "k1", "k2", "k3", "k4"], "keep")
    train(store, 2)
    again = train(store, 1, parent=1, replay=9)
    assert sorted(names(again.replayed)) == ["gone", "k0"]
    thrown = train(store, 1, parent=2, outcome="rejected", replay=9)
    flying = store.claim(1, parent_version=2, replay=9)
    assert flying is not None
    assert "gone" in names(thrown.replayed)
    assert "gone" in names(flying.replayed)
    assert store.trained_versions("go") == [1, 2]
    forgotten = store.forget("go")
    assert (forgotten.versions, forgotten.open_steps) == ((1, 2), (flying.step_id,))
    store.finish_step(flying.step_id, "published", version=7, metrics={})  # it was in flight
    after = store.claim(1, parent_version=7, replay=9)
    assert after is not None
    assert sorted(names(after.replayed)) == ["k0", "k1", "k3"]


def test_one_that_cannot_be_read_is_passed_over(store: Store) -> None:
    make_ready(store, ["a", "b", "c"])
    train(store, 2)
    with store._engine.begin() as connection:
        connection.exec_driver_sql("UPDATE turn SET log_probs = prompt_ids WHERE turn_id = 'a'")
    claim = store.claim(1, parent_version=1, replay=2)
    assert claim is not None
    assert names(claim.replayed) == ["b"]
    assert store.detail("b").drop is None


def test_abandoning_a_step_gives_back_the_new_ones_only(store: Store) -> None:
    make_ready(store, ["a", "b"])
    train(store, 1)
    claim = store.claim(1, parent_version=1, replay=1)
    assert claim is not None
    store.finish_step(claim.step_id, "abandoned", version=None, metrics={})
    assert store.ready().n == 1
    assert store.trained_versions("s0") == [1]
    assert store.funnel().replayed == 0
    again = store.claim(1, parent_version=1, replay=1)
    assert again is not None
    assert (names(again.samples), names(again.replayed)) == (["b"], ["a"])
