"""The scorer over a real store: what is recorded, what has a reason, what a failing teacher leaves waiting."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from stereorl.data import Hint, NextState, Verdict
from stereorl.data.message import Message
from stereorl.errors import TeacherError
from stereorl.learn.choosing import Longest
from stereorl.learn.scoring import LONGEST_PAUSE_S, Scorer
from stereorl.store.records import NewSession
from stereorl.store.store import Store
from tests.learn.home import FlatTeacher
from tests.learn.tiny import make_sample, make_turn

BAD, MUTE = Verdict(-1, "wrong"), Verdict(None, "all abstain")


@pytest.fixture
def store(tmp_path):
    with Store.open(f"sqlite:///{tmp_path / 'stereorl.db'}") as opened:
        opened.put([NewSession("s", 1.0, "new")])
        yield opened
        assert opened.integrity_check() == "ok"
        funnel = opened.funnel()
        assert funnel.captured == funnel.trained + funnel.waiting + sum(funnel.dropped.values())


def judged(store, key, *texts, verdict=BAD, source="model"):
    turn = make_turn([2, 3], [4, 5, 6], turn_id=key)
    store.put([turn, NextState(key, "reply", (Message("user", "no"),), 2.0)])
    store.record_judgement(key, verdict, [Hint(text, source, True, "") for text in texts])


def test_the_likeliest_ids_are_recorded_where_they_are_wanted(store):
    for key, top_k in (("plain", 0), ("top", 4)):
        judged(store, key, "shorter")
        assert Scorer(store, FlatTeacher(), at_a_time=8, top_k=top_k).score() == 1
    plain, top = (store.detail(key).teacher_scores[0] for key in ("plain", "top"))
    assert plain.top_ids is None
    assert top.top_ids.tolist() == [[0, 1, 2, 3]] * 3
    assert top.top_log_probs.shape == (3, 4)


def test_the_best_hint_that_can_be_scored_teaches(store):
    judged(store, "t0", "the longest of all", "longer", "long")
    judged(store, "t1", "short")
    teacher = FlatTeacher()
    teacher.refuses = {"the longest of all", "longer"}
    scorer = Scorer(store, teacher, at_a_time=8, choice=Longest())
    assert scorer.score() == 2
    assert store.detail("t0").teacher_scores[0].hint == "long"
    assert store.detail("t1").teacher_scores[0].hint == "short"
    assert scorer.score() == 0


def test_where_none_can_be_scored_the_reward_goes_on_or_the_turn_is_dropped(store):
    judged(store, "rewarded", "a", "bb")
    judged(store, "mute", "a", "bb", verdict=MUTE)
    teacher = FlatTeacher()
    teacher.refuses = {"a", "bb"}
    assert Scorer(store, teacher, at_a_time=8).score() == 2
    rewarded, mute = store.detail("rewarded"), store.detail("mute")
    assert (rewarded.stage, rewarded.unscored) == ("ready", "hint_over_context")
    assert (mute.drop, mute.drop_stage) == ("hint_over_context", "score")


def test_scores_that_do_not_fit_are_a_reason_too(store):
    judged(store, "t0", "a")
    teacher = FlatTeacher(value=float("nan"))
    assert Scorer(store, teacher, at_a_time=8).score() == 1
    assert (store.detail("t0").stage, store.detail("t0").unscored) == ("ready", "misaligned")


def test_a_failing_teacher_is_asked_with_growing_pauses(store, caplog):
    judged(store, "t0", "a")
    teacher, now, asked = FlatTeacher(), [0.0], []
    real = teacher.score

    def counted(pairs, *, top_k=0):
        asked.append(now[0])
        return real(pairs, top_k=top_k)

    teacher.score = counted
    teacher.failure = TeacherError("The teacher is away.")
    scorer = Scorer(store, teacher, at_a_time=8, clock=lambda: now[0])
    for _ in range(4 * 300):
        assert scorer.score() == 0
        now[0] += 0.25
    assert asked[:7] == [0.0, 1.0, 3.0, 7.0, 15.0, 31.0, 63.0]
    assert np.diff(asked).max() == LONGEST_PAUSE_S
    assert "The teacher is away. 1 turns wait; asking again in 1 s." in caplog.text
    assert store.detail("t0").stage == "score"
    teacher.failure = None
    now[0] += LONGEST_PAUSE_S
    assert scorer.score() == 1
    judged(store, "t1", "a")
    teacher.failure = TeacherError("Away again.")
    scorer.score()
    assert "Away again. 1 turns wait; asking again in 1 s." in caplog.text  # the pauses begin anew


def both():
    """With a reward and a hint, with a hint alone, with a reward alone."""
    return [
        make_sample(1, reward=1.0, teacher=True),
        make_sample(2, teacher=True),
        make_sample(3, reward=-1.0),
    ]


def test_a_moving_teacher_is_asked_again_and_one_that_stands_is_not():
    samples = both()
    still = Scorer(None, FlatTeacher("base"), at_a_time=8).fresh(samples)
    assert all(a is b for a, b in zip(still, samples, strict=True))
    first, second, third = Scorer(None, FlatTeacher("ema", -2.0), at_a_time=8, top_k=2).fresh(samples)
    for sample in (first, second):
        assert sample.teacher_log_probs.tolist() == [-2.0] * 5
        assert sample.teacher_top_ids.tolist() == [[0, 1]] * 5
    assert third is samples[2]


def test_what_was_recorded_without_the_ids_that_are_wanted_now_is_asked_again():
    teacher = FlatTeacher("base", -2.0)
    wanting = Scorer(None, teacher, at_a_time=8, top_k=3)
    first, second, third = wanting.fresh(both())
    assert first.teacher_top_ids.shape == second.teacher_top_ids.shape == (5, 3)
    assert first.teacher_log_probs.tolist() == [-2.0] * 5
    assert third.teacher_top_ids is None
    assert teacher.asked == 2
    again = wanting.fresh([first, second, third])
    assert all(a is b for a, b in zip(again, (first, second, third), strict=True))
    assert Scorer(None, teacher, at_a_time=8, top_k=4).fresh([first])[0].teacher_top_ids.shape == (5, 4)


def test_what_a_moving_teacher_can_no_longer_score():
    samples = [replace(s, hint="gone") if s.hint else s for s in both()]
    teacher = FlatTeacher("live")
    teacher.refuses = {"gone"}
    first, second, third = Scorer(None, teacher, at_a_time=8).fresh(samples)
    assert (first.reward, first.has_teacher, first.hint) == (1.0, False, None)
    assert second is samples[1]  # without a reward the recorded score is all there is
    assert third is samples[2]


def test_a_moving_teacher_that_fails_leaves_the_recorded_scores(caplog):
    samples = both()
    teacher = FlatTeacher("live")
    teacher.failure = TeacherError("Away.")
    assert Scorer(None, teacher, at_a_time=8).fresh(samples) == samples
    assert "uses the recorded scores" in caplog.text


class Fitting(FlatTeacher):
    """One in this process, whose context has become too short for a hint."""

    def fits(self, turn, hint):
        return hint not in self.refuses


@pytest.mark.parametrize("settings", [{"asked_at_step": True}, {"top_k": 3}])
def test_a_hint_that_the_step_cannot_read_any_more_leaves_the_reward_or_nothing(settings):
    teacher = Fitting()
    teacher.refuses = {"shorter"}
    samples = both()
    first, last = Scorer(None, teacher, at_a_time=8, **settings).fresh(samples)
    assert (first.reward, first.hint, first.has_teacher) == (1.0, None, False)
    assert last is samples[2]


def test_a_teacher_that_fails_where_nothing_will_do_for_it_is_waited_for():
    teacher, now = FlatTeacher(), [0.0]
    teacher.failure = TeacherError("away")
    scorer = Scorer(None, teacher, at_a_time=8, top_k=3, clock=lambda: now[0])
    with pytest.raises(TeacherError):
        scorer.fresh(both())
    assert scorer.pausing
    now[0] = 1.5
    assert not scorer.pausing
