"""Judges that fail: what waits for a model holds up nobody, is asked again with growing pauses, and leaves by name."""

from __future__ import annotations

import pytest

from stereorl.config import SignalsConfig
from stereorl.data import Hint, Vote
from stereorl.errors import JudgeError
from stereorl.learn import collector as module
from stereorl.learn.collector import Collector
from stereorl.signals.judge import CompositeJudge, RulesJudge, Undecided

UNCLEAR = "My boss would frown."  # the rules abstain


class Model:
    """A judge that needs a model; `script` says what it does each time: a vote, None, or raise."""

    def __init__(self, *script, default=-1):
        self.script, self.default, self.asked = list(script), default, []

    def quick(self, turn, next_state, feedback=()):
        return None

    def votes(self, turn, next_state, feedback=()):
        self.asked.append(turn.turn_id)
        value = self.script.pop(0) if self.script else self.default
        if isinstance(value, Exception):
            raise value
        return (Vote("endpoint", value, "scripted"),)


class Writer:
    def __init__(self, *script):
        self.script = list(script)

    def quick(self, turn, next_state, feedback, verdict):
        return None if verdict.reward == -1 else ()

    def hints(self, turn, next_state, feedback, verdict):
        found = self.script.pop(0) if self.script else ()
        if isinstance(found, Exception):
            raise found
        return found


class Clock:
    now = 100.0

    def __call__(self):
        return self.now


LOST = Undecided("The judge cannot be reached.", (Vote("endpoint", None, "failed"),))


@pytest.fixture
def clock():
    return Clock()


def collector(home, clock, *judges, hinter=None, **settings):
    config = SignalsConfig(**{"judge_backoff_s": 10, "judge_retries": 2, **settings})
    return Collector(home.store, CompositeJudge([RulesJudge(), *judges]), config, hinter=hinter, clock=clock)


def rounds(made, n=20):
    return sum(made.collect() for _ in range(n))


def test_the_model_is_asked_where_the_rules_abstain(home, clock):
    thanks, unclear = home.talk("Thanks!", UNCLEAR)
    model = Model()
    assert rounds(collector(home, clock, model)) == 2
    assert model.asked == [unclear]
    assert home.store.detail(thanks).verdict.reward == 1
    assert [v.judge for v in home.store.detail(unclear).verdict.votes][-1] == "endpoint"
    assert home.store.detail(unclear).verdict.reward == -1


def test_it_is_asked_again_after_growing_pauses(home, clock):
    (turn_id,) = home.talk(UNCLEAR)
    model = Model(LOST, LOST, 1)
    made = collector(home, clock, model)
    asked = []
    for second in range(40):
        clock.now = 100.0 + second
        made.collect()
        asked.append(len(model.asked))
    assert [asked.index(n) for n in (1, 2, 3)] == [0, 10, 30]
    assert home.store.detail(turn_id).verdict.reward == 1


def test_after_the_last_try_it_is_dropped_by_name_with_its_votes(home, clock):
    (turn_id,) = home.talk(UNCLEAR)
    model = Model(default=LOST)
    made = collector(home, clock, model)
    for _ in range(5):
        clock.now += 1000
        made.collect()
    detail = home.store.detail(turn_id)
    assert (len(model.asked), detail.drop) == (3, "judge_abstained")
    assert detail.verdict.reward is None
    assert detail.verdict.reason == "no verdict in 3 tries: The judge cannot be reached."
    assert [v.judge for v in detail.verdict.votes] == ["user_words", "environment", "regenerate", "endpoint"]
    assert home.store.funnel().waiting == 0


def test_an_abstention_for_good_is_not_asked_again(home, clock):
    (turn_id,) = home.talk(UNCLEAR)
    model = Model(None)
    rounds(collector(home, clock, model))
    assert (len(model.asked), home.store.detail(turn_id).drop) == (1, "judge_abstained")


def test_without_a_model_the_name_is_no_signal(home, clock):
    (turn_id,) = home.talk(UNCLEAR)
    rounds(collector(home, clock))
    assert home.store.detail(turn_id).drop == "no_signal"


def test_what_waits_holds_up_nobody(home, clock, monkeypatch):
    monkeypatch.setattr(module, "AT_A_TIME", 3)
    stuck = home.talk(*[UNCLEAR] * 12)
    younger = home.talk(*["Thanks!"] * 5)
    model = Model(default=LOST)
    made = collector(home, clock, model)
    for _ in range(8):
        made.collect()
    assert all(home.store.detail(turn_id).verdict.reward == 1 for turn_id in younger)
    assert all(home.store.detail(turn_id).verdict is None for turn_id in stuck)
    assert len(model.asked) == len(set(model.asked)) == 12


def test_what_waits_is_not_read_again(home, clock, monkeypatch):
    home.talk(*[UNCLEAR] * 6)
    made = collector(home, clock, Model(default=LOST))
    for _ in range(3):
        made.collect()
    read, real = [], home.store.judge_queue

    def counted(*args, **given):
        found = real(*args, **given)
        read.append(len(found))
        return found

    monkeypatch.setattr(home.store, "judge_queue", counted)
    made.collect()
    assert sum(read) == 0
    clock.now += 10
    made.collect()
    assert sum(read) == module.MODEL_AT_A_TIME


def test_a_round_asks_a_model_a_few_times_only_and_the_untried_come_first(home, clock):
    ids = home.talk(*[UNCLEAR] * 6)
    model = Model(LOST, LOST)
    made = collector(home, clock, model)
    made.collect()
    assert model.asked == ids[:2]
    clock.now += 1000
    made.collect()
    assert model.asked == ids[:4]


def test_a_hint_that_fails_keeps_the_verdict_and_falls_back_on_the_quote(home, clock):
    (turn_id,) = home.talk("Too long. Please answer in one short sentence.")
    writer = Writer(*[JudgeError("The writer cannot be reached.")] * 9)
    model = Model()
    made = collector(home, clock, model, hinter=writer)
    for _ in range(5):
        clock.now += 1000
        made.collect()
    detail = home.store.detail(turn_id)
    assert (detail.verdict.reward, detail.drop, model.asked) == (-1, None, [])
    assert [(h.source, h.accepted) for h in detail.hints] == [("user", True)]
    assert len(writer.script) == 6


def test_a_models_hints_are_recorded(home, clock):
    (turn_id,) = home.talk("Too long. Please answer in one short sentence.")
    hint = Hint("Answer in one short sentence.", "model", True, "scripted")
    rounds(collector(home, clock, hinter=Writer(JudgeError("gone"), (hint,))), n=1)
    assert home.store.detail(turn_id).verdict is None
    clock.now += 1000
    rounds(collector(home, clock, hinter=Writer((hint,))))  # after a restart it starts anew
    assert home.store.detail(turn_id).hints == (hint,)


def test_a_session_forgotten_while_it_waits_is_forgotten_here_too(home, clock):
    (turn_id,) = home.talk(UNCLEAR)
    made = collector(home, clock, Model(LOST))
    made.collect()
    home.store.forget(home.store.turn(turn_id).session_id)
    clock.now += 1000
    assert rounds(made) == 0
    assert made._waiting == {}
