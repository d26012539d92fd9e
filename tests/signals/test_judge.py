"""decide() by truth table, and feedback over everything."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from stereorl.data import Feedback, Message, NextState, Sampling, Turn, Vote
from stereorl.data.signal import Reward
from stereorl.errors import JudgeError
from stereorl.signals.judge import CompositeJudge, RulesJudge, Undecided, decide, judge_item, quick_votes

NONE = np.zeros(0, np.int32)
TURN = Turn(
    turn_id="t", session_id="s", index=0, kind="main", messages=(Message("user", "Hi, who are you?"),),
    reply=Message("assistant", "A model."), prompt_ids=NONE, response_ids=NONE, log_probs=np.zeros(0, np.float32),
    versions=NONE, sampling=Sampling(), finish_reason="stop", model="m", created_at=0.0,
)  # fmt: skip


@pytest.mark.parametrize(
    ("cast", "reward"),
    [
        ((), None),
        ((None,), None),
        ((None, None, None), None),
        ((1,), 1),
        ((-1,), -1),
        ((0,), 0),
        ((1, None), 1),
        ((None, -1, None), -1),
        ((1, 1, -1), 1),
        ((-1, 1, -1), -1),
        ((1, -1), 0),
        ((1, -1, None), 0),
        ((1, 0), 0),
        ((-1, 0), 0),
        ((1, -1, 0), 0),
        ((1, 1, -1, -1), 0),
        ((1, 1, -1, -1, 0), 0),
        ((0, 0, 1), 0),
        ((1, 1, 0), 1),
        ((-1, -1, 0, 0), 0),
        ((1, 1, 0, -1), 1),
    ],
)
def test_strict_plurality(cast: tuple[Reward | None, ...], reward: int | None) -> None:
    votes = tuple(Vote(f"j{i}", value, "because") for i, value in enumerate(cast))
    verdict = decide(votes)
    assert verdict.reward == reward
    assert verdict.votes == votes


def test_reasons_name_the_winners() -> None:
    verdict = decide((Vote("user_words", -1, "again"), Vote("environment", None, "no environment output")))
    assert verdict.reason == "user_words: again"
    assert decide((Vote("a", 1, "x"), Vote("b", -1, "y"))).reason == "tie: a +1, b -1"


def item(text: str | None, *feedback: Feedback) -> SimpleNamespace:
    state = None if text is None else NextState("t", "reply", (Message("user", text),), 0.0)
    return SimpleNamespace(turn=TURN, next_state=state, feedback=feedback)


@pytest.mark.parametrize(
    ("text", "feedback", "reward"),
    [
        ("Thanks!", (), 1),
        (None, (), None),
        ("Thanks!", (Feedback("t", -1, None, 0.0),), -1),
        ("That's wrong.", (Feedback("t", 1, None, 0.0),), 1),
        ("That's wrong.", (Feedback("t", 0, None, 0.0),), 0),
        (None, (Feedback("t", 1, None, 0.0),), 1),
        (None, (Feedback("t", -1, None, 2.0), Feedback("t", 1, None, 1.0)), -1),
        (None, (Feedback("t", None, "Use metric units.", 0.0),), -1),
        ("That's wrong.", (Feedback("t", None, "Use metric units.", 0.0),), -1),
        ("Thanks!", (Feedback("t", None, "Use metric units.", 0.0),), 0),
        ("Thanks!", (Feedback("t", None, "   ", 0.0),), 1),
        ("Thanks!", (Feedback("t", 1, "Use metric units.", 0.0),), 1),
    ],
)
def test_feedback(text: str | None, feedback: tuple[Feedback, ...], reward: int | None) -> None:
    verdict = judge_item(RulesJudge(), item(text, *feedback))
    assert verdict.reward == reward
    if any(f.score is not None for f in feedback):
        assert verdict.reason == f"feedback: explicit score {reward:+d}"
        assert verdict.votes[0].judge == "feedback"


class Scripted:
    """A judge that says one thing, or fails."""

    def __init__(self, *values: Reward | None, failure: JudgeError | None = None, model: bool = False):
        self.values, self.failure, self.asked = values, failure, 0
        if model:
            self.quick = lambda *args: None

    def votes(
        self, turn: Turn, next_state: NextState | None, feedback: tuple[Feedback, ...] = ()
    ) -> tuple[Vote, ...]:
        self.asked += 1
        if self.failure is not None:
            raise self.failure
        return tuple(Vote("endpoint", value, "scripted") for value in self.values)


def test_each_judge_is_asked_only_where_all_before_it_abstained() -> None:
    model = Scripted(-1, -1, 1)
    chain = CompositeJudge([RulesJudge(), model])
    assert judge_item(chain, item("Thanks!")).reward == 1
    assert model.asked == 0
    verdict = judge_item(chain, item("My boss would frown"))
    assert (verdict.reward, model.asked) == (-1, 1)
    assert [(v.judge, v.value) for v in verdict.votes] == [
        ("user_words", None), ("environment", None), ("regenerate", None),
        ("endpoint", -1), ("endpoint", -1), ("endpoint", 1),
    ]  # fmt: skip


def test_a_tie_of_the_rules_is_decided_and_asks_nobody() -> None:
    first, second = Scripted(1, -1), Scripted(1)
    assert judge_item(CompositeJudge([first, second]), item("hm")).reward == 0
    assert second.asked == 0


def test_a_failure_falls_to_the_next_judge_and_is_raised_when_nobody_decides() -> None:
    lost = Undecided("gone", (Vote("endpoint", None, "failed: gone"),))
    verdict = judge_item(CompositeJudge([Scripted(failure=lost), Scripted(1)]), item("hm"))
    assert (verdict.reward, verdict.votes[0].reason) == (1, "failed: gone")
    with pytest.raises(Undecided, match="gone") as caught:
        judge_item(CompositeJudge([RulesJudge(), Scripted(failure=lost), Scripted(None)]), item("hm"))
    assert [v.judge for v in caught.value.votes] == [
        "user_words",
        "environment",
        "regenerate",
        *["endpoint"] * 2,
    ]
    assert judge_item(CompositeJudge([RulesJudge(), Scripted(None)]), item("hm")).reward is None
    with pytest.raises(Undecided):
        CompositeJudge([Scripted(failure=JudgeError("plain"))]).votes(TURN, None)


def test_feedback_decides_where_a_judge_fails() -> None:
    judge = CompositeJudge([Scripted(failure=JudgeError("gone"))])
    assert judge_item(judge, item("hm", Feedback("t", 1, None, 0.0))).reward == 1
    assert judge_item(judge, item("hm", Feedback("t", None, "Use metric units.", 0.0))).reward == -1


def test_quick_votes_never_ask_a_model() -> None:
    model = Scripted(1, model=True)
    chain = CompositeJudge([RulesJudge(), model])
    thanks, unclear = item("Thanks!").next_state, item("hm").next_state
    votes = quick_votes(chain, TURN, thanks)
    assert votes is not None
    assert decide(votes).reward == 1
    assert quick_votes(chain, TURN, unclear) is None
    assert quick_votes(RulesJudge(), TURN, unclear) is not None
    assert model.asked == 0
