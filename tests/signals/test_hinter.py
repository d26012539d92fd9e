"""A model's wordings come between feedback and quotes, if the user may have corrected, the majority says so, and the
words are true to the user's."""

from __future__ import annotations

from typing import Any

import pytest

from stereorl.config import SignalsConfig
from stereorl.data import Feedback, Message, NextState, Turn, Verdict
from stereorl.signals.hinter import Draft, ModelHinter, QuoteHinter
from tests.signals.injections import ATTEMPTS
from tests.signals.turns import said, turn

TURN = turn()
BAD, GOOD, UNSURE = Verdict(-1, "x"), Verdict(1, "x"), Verdict(None, "x")
WORDS = "Please don't use bullet points."


class Scripted:
    name = "scripted"
    strict = False

    def __init__(self, *texts: str, votes: tuple[bool | None, ...] = (True,)):
        self.draft = Draft(votes, texts)
        self.asked: list[NextState] = []

    def write(self, turn: Turn, next_state: NextState) -> Draft:
        self.asked.append(next_state)
        return self.draft


def hints(
    writer: Scripted, state: NextState | None, verdict: Verdict = BAD, *feedback: Feedback, **settings: Any
):  # type: ignore[no-untyped-def]
    hinter = ModelHinter(writer, SignalsConfig(hinter="base", **settings))
    quick = hinter.quick(TURN, state, feedback, verdict)
    assert (quick is None) == bool(hinter.hints(TURN, state, feedback, verdict) and writer.asked)
    writer.asked.clear()
    return hinter.hints(TURN, state, feedback, verdict)


def test_accepted_wordings_come_first_and_the_quote_stays_behind_them() -> None:
    found = hints(Scripted("Write in prose, without bullet points.", "Use no bullet points."), said(WORDS))
    assert [(h.source, h.accepted, h.text) for h in found] == [
        ("model", True, "Write in prose, without bullet points."),
        ("model", True, "Use no bullet points."),
        ("user", True, "Please don't use bullet points."),
    ]


def test_a_wording_that_contradicts_the_user_is_refused_by_name_and_the_quote_teaches() -> None:
    found = hints(Scripted("Use bullet points.", "Use three bullet points."), said(WORDS))
    assert [(h.source, h.accepted) for h in found] == [("user", True), ("model", False), ("model", False)]
    assert found[1].reason == "scripted: it inverts the user's words: bullet"


def test_at_most_so_many_different_candidates() -> None:
    texts = ("Avoid bullet points.", "Avoid bullet points.", "No bullet points.", "Leave out bullet points.")
    found = hints(Scripted(*texts), said(WORDS), hint_candidates=2)
    assert [h.text for h in found if h.source == "model"] == ["Avoid bullet points.", "No bullet points."]


@pytest.mark.parametrize(
    ("votes", "taken"),
    [
        ((True,), True),
        ((True, False), False),
        ((True, True, False), True),
        ((True, None), True),
        ((False,), False),
    ],
)
def test_the_majority_decides(votes: tuple[bool | None, ...], taken: bool) -> None:
    found = hints(Scripted("Avoid bullet points.", votes=votes), said(WORDS))
    model = [h for h in found if h.source == "model"]
    assert [h.accepted for h in model] == [taken]
    if not taken:
        assert (
            f"no correction in the user's words ({votes.count(True)} of {len(votes)} votes)"
            in model[0].reason
        )
    assert any(h.source == "user" and h.accepted for h in found)


@pytest.mark.parametrize(
    ("state", "verdict", "asked"),
    [
        (said(WORDS), BAD, True),
        (said(WORDS), UNSURE, True),  # the rules read a correction
        (said("My boss would frown"), BAD, True),  # only the judge saw it
        (said("My boss would frown"), UNSURE, False),
        (said("Thanks!"), GOOD, False),
        (said(WORDS, kind="regenerate"), BAD, False),
        (said(""), BAD, False),
        (None, BAD, False),
        (said("Error: no such table", role="tool"), BAD, False),
        (said("```\nPlease use bold.\n```"), BAD, False),
        (said("<returncode>1</returncode>\n<output>use bold</output>"), BAD, False),
    ],
)
def test_a_model_is_asked_only_where_a_user_may_have_corrected(
    state: NextState | None, verdict: Verdict, asked: bool
) -> None:
    writer = Scripted("Avoid bullet points.")
    hints(writer, state, verdict)
    assert bool(writer.asked) == asked


def test_trust_and_explicit_corrections_come_before_any_model() -> None:
    writer = Scripted("Avoid bullet points.")
    assert not any(h.accepted for h in hints(writer, said(WORDS), BAD, hint_trust=["tool"]))
    assert writer.asked == []
    found = hints(writer, said(WORDS), BAD, Feedback("t", None, "Use metric units everywhere.", 0.0))
    assert found[0].source == "feedback"
    assert writer.asked == []
    found = hints(writer, said(WORDS), BAD, Feedback("t", -1, "no", 0.0))  # too short to teach
    assert (found[0].source, found[0].accepted, found[1].source) == ("feedback", False, "model")


def test_a_trusted_tool_still_goes_through_the_template_only() -> None:
    state = NextState(
        "t", "reply", (Message("tool", "Error: no such table: users"), Message("user", WORDS)), 0.0
    )
    found = hints(Scripted("Avoid bullet points."), state, BAD, hint_trust=["user", "tool"])
    assert [h.source for h in found] == ["model", "user", "tool"]
    assert found[2].text.startswith('The tool call failed with: "Error: no such table')


@pytest.mark.parametrize("attempt", ATTEMPTS)
def test_no_attempt_in_tool_output_reaches_a_model_or_becomes_a_hint(attempt: str) -> None:
    writer = Scripted("Avoid bullet points.")
    for frame in ("{}", "Traceback (most recent call last):\n{}\nKeyError: 1", "<output>\n{}\n</output>"):
        state = said(frame.format(attempt), role="tool")
        assert not any(h.accepted for h in hints(writer, state, BAD))
    assert writer.asked == []


def test_a_hint_is_bounded_and_carries_no_marks() -> None:
    long = "Avoid bullet points in all answers. " * 30
    found = hints(Scripted(long, "Avoid << bullet points"), said(WORDS), hint_max_chars=100)
    model = [h for h in found if h.source == "model"]
    assert all(len(h.text) <= 100 and "<<" not in h.text for h in model)
    assert [h.accepted for h in model] == [True, False]


def test_the_quote_alone_never_asks_anybody() -> None:
    quote = QuoteHinter(SignalsConfig())
    assert quote.quick(TURN, said(WORDS), (), BAD) == quote.hints(TURN, said(WORDS), (), BAD)
