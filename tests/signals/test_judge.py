"""decide() by truth table, and feedback over everything."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from stereorl.data import Feedback, Message, NextState, Sampling, Turn, Vote
from stereorl.data.signal import Reward
from stereorl.signals.judge import RulesJudge, decide, judge_item

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
