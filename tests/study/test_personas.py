"""Personas: rules decided by the reply alone, and complaints that the judge and the hint extraction understand."""

from __future__ import annotations

import itertools

import pytest

from stereorl.data import Message, NextState
from stereorl.errors import ConfigError
from stereorl.signals.hints import extract_hints
from stereorl.signals.judge import decide
from stereorl.signals.rules import rule_votes
from stereorl.study.personas import PERSONAS, persona_named
from stereorl.study.prompts import questions

ALL = [(persona, text) for persona in PERSONAS.values() for text in (*persona.complaints, *persona.thanks)]


@pytest.mark.parametrize(
    ("name", "text", "finish", "kept"),
    [
        ("brief", "Boil it for ten minutes.", "stop", True),
        ("brief", "Boil it for ten minutes.", "length", False),
        ("brief", "", "stop", False),
        ("brief", " ".join(["word"] * 25), "stop", True),
        ("brief", " ".join(["word"] * 26), "stop", False),
        ("plain", "First boil it, then peel it.", "length", True),
        ("plain", "Steps:\n1. Boil it.", "stop", False),
        ("plain", "- Boil it", "stop", False),
        ("plain", "Boil it **well**.", "stop", False),
        ("plain", "It takes 10-12 minutes - roughly.", "stop", True),
        ("plain", " \n", "stop", False),
        ("paragraph", "Boil it. Peel it.\n", "stop", True),
        ("paragraph", "Boil it.\nPeel it.", "stop", False),
    ],
)
def test_rules(name: str, text: str, finish: str, kept: bool) -> None:
    assert persona_named(name).check(text, finish) is kept


@pytest.mark.parametrize(
    ("persona", "text"), ALL, ids=lambda value: value if isinstance(value, str) else value.name
)
def test_words_are_understood_by_the_judge_and_the_hint_extraction(persona, text) -> None:
    said = NextState("t", "reply", (Message("user", text),), 0.0)
    asked, reply = (
        (Message("user", "How do I boil an egg?"),),
        Message("assistant", "To boil an egg, take a pan. " * 9),
    )
    complaint = text in persona.complaints
    assert decide(rule_votes(asked, reply, said)).reward == (-1 if complaint else 1)
    hints = [hint for hint in extract_hints(said, (), trust=("user",), max_chars=400) if hint.accepted]
    assert bool(hints) is complaint


def test_questions_are_many_and_disjoint() -> None:
    lists = {name: questions(name) for name in ("train", "heldout", "retention")}
    assert len(lists["train"]) >= 40
    assert len(lists["heldout"]) >= 24
    assert len(lists["retention"]) == 8
    for left, right in itertools.combinations(lists.values(), 2):
        assert not {text.lower() for text in left} & {text.lower() for text in right}
    for texts in lists.values():
        assert len(set(texts)) == len(texts)


def test_an_unknown_persona_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match="brief, plain, paragraph"):
        persona_named("grumpy")
