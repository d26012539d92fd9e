"""The rules judge on labelled next states, its votes one by one, and what hostile text cannot do to it."""

from __future__ import annotations

import time

import pytest

from stereorl.data import Message, NextState, ToolCall
from stereorl.signals.judge import decide
from stereorl.signals.rules import rule_votes
from tests.signals.table import load, score

ASKED = (Message("user", "Name the capital of Australia."),)
ANSWERED = Message("assistant", "Sydney.")


def user(*texts: str) -> NextState:
    return NextState("t", "reply", tuple(Message("user", text) for text in texts), 0.0)


def votes(
    next_state: NextState, request: tuple[Message, ...] = ASKED, reply: Message = ANSWERED
) -> dict[str, int | None]:
    return {vote.judge: vote.value for vote in rule_votes(request, reply, next_state)}


def words(text: str, request: str = "Name the capital of Australia.", reply: str = "Sydney.") -> int | None:
    return votes(user(text), (Message("user", request),), Message("assistant", reply))["user_words"]


# `dev` and `hard` shaped the cues; `held` was labelled before there were any and never looked at since.
@pytest.mark.parametrize("name", ["dev", "held", "hard"])
def test_labelled_next_states(name: str) -> None:
    cases = load(name)
    result = score(cases)
    told = [(case.line, case.label, case.reward, case.text[:60]) for case in result.wrong]
    print(
        f"{name}: {len(cases)} next states, accuracy {result.accuracy:.3f}, abstained {result.abstained:.3f}"
    )
    assert result.accuracy >= 0.9, told
    assert result.abstained <= 0.3, [(case.line, case.text[:60]) for case in result.silent]


def test_all_labelled_next_states_together() -> None:
    cases = [case for name in ("dev", "held", "hard") for case in load(name)]
    result = score(cases)
    assert len(cases) >= 150
    assert result.accuracy >= 0.9
    assert result.abstained <= 0.3


def test_the_tables_are_varied() -> None:
    cases = [case for name in ("dev", "held") for case in load(name)]
    chinese = [c for c in cases if any("\u4e00" <= char <= "\u9fff" for char in c.text)]
    assert len(cases) >= 160
    assert len({case.text for case in cases}) == len(cases)
    assert len(chinese) >= 40
    assert sum(case.tool is not None for case in cases) >= 50
    assert {label: sum(c.label == label for c in cases) >= 20 for label in (-1, 0, 1)} == dict.fromkeys(
        (-1, 0, 1), True
    )


def test_one_vote_per_kind_of_evidence() -> None:
    assert votes(user("Thanks!")) == {"user_words": 1, "environment": None, "regenerate": None}
    both = NextState("t", "reply", (Message("tool", "exit code: 1"), Message("user", "great, thanks")), 0.0)
    assert votes(both) == {"user_words": 1, "environment": -1, "regenerate": None}


def test_a_regeneration_is_dissatisfaction_and_its_words_are_old() -> None:
    again = NextState("t", "regenerate", (Message("user", "Thanks, that was great!"),), 0.0)
    assert votes(again) == {"user_words": None, "environment": None, "regenerate": -1}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("not bad", 1),
        ("no problem", 1),
        ("没问题", 1),
        ("不错", 1),
        ("没错", 1),
        ("no thanks", -1),
        ("not good", -1),
        ("isn't very helpful", -1),
        ("不对", -1),
        ("不好", -1),
        ("this is not what I wanted", -1),
        ("thanks, but make it shorter", -1),
        ("make it shorter, thanks", -1),
        ("Great, now it fails again", -1),
        ("No, it's perfect.", 1),
        ("that's not wrong", 1),
    ],
)
def test_negation_and_mixture(text: str, value: int) -> None:
    assert words(text) == value


@pytest.mark.parametrize(
    "text",
    [
        "Is this wrong?",
        "Are you sure?",
        'Translate "this is wrong, do it again" into French.',
        "What does this mean?\n> That's terrible, rewrite it.",
        "Please summarise the following letter:\n\nYou forgot the units. Redo it. Thanks!",
        "<document>thanks, perfect</document>\nWhat is the sender's name?",
        "```\nwrong wrong wrong\n```",
        "「太长了，重写」是什么意思？",
    ],
)
def test_questions_and_quotations_abstain(text: str) -> None:
    assert words(text) is None


@pytest.mark.parametrize(
    ("request_", "text", "value"),
    [
        ("What is the capital of Australia?", "what's the capital of Australia", -1),
        ("What is the capital of Australia?", "Please tell me what the capital of Australia is.", -1),
        ("What is the capital of Australia?", "What is the capital of Austria?", None),
        ("What is 12 * 13?", "What is 12 * 14?", None),
        ("法国的首都是哪里？", "请问法国的首都是哪里", -1),
        ("法国的首都是哪里？", "秘鲁的首都是哪里？", None),
        ("continue", "continue", 1),
    ],
)
def test_the_same_request_again(request_: str, text: str, value: int | None) -> None:
    assert words(text, request_) == value


def test_no_to_a_question_of_the_assistant_is_an_answer() -> None:
    assert words("No.", reply="Shall I also list the population?") is None
    assert words("No.", reply="Sydney.") == -1


def test_command_output_in_a_user_message_is_environment_not_words() -> None:
    report = user("<returncode>1</returncode>\n<output>\nthanks, great, perfect\n</output>")
    assert votes(report) == {"user_words": None, "environment": -1, "regenerate": None}
    ran = user("I ran it:\n```\n==== 2 failed, 3 passed in 0.10s ====\n```")
    assert votes(ran)["environment"] == -1


def test_a_reader_is_not_blamed_for_what_it_read() -> None:
    log = "12:00 started\n12:01 Traceback (most recent call last):\nValueError: x\nexit status 3 was logged"
    for tool, arguments in (("read_file", "{}"), ("readFile", "{}"), ("bash", '{"command": "cat app.log"}')):
        reply = Message("assistant", tool_calls=(ToolCall("a", tool, arguments),))
        state = NextState("t", "reply", (Message("tool", log, tool_call_id="a"),), 0.0)
        assert votes(state, reply=reply)["environment"] == 1
    reply = Message("assistant", tool_calls=(ToolCall("a", "bash", '{"command": "python app.py"}'),))
    state = NextState("t", "reply", (Message("tool", log, tool_call_id="a"),), 0.0)
    assert votes(state, reply=reply)["environment"] == -1


def test_one_failed_call_of_several_fails_the_step() -> None:
    state = NextState("t", "reply", (Message("tool", "exit code: 0"), Message("tool", '{"error": "x"}')), 0.0)
    assert votes(state)["environment"] == -1


HOSTILE = {
    "letters": "a" * 1_000_000,
    "words": "not " * 250_000,
    "quotes": "\"'`“「" * 200_000,
    "tags": "<a>" * 330_000,
    "open tags": "".join(f"<t{i}>" for i in range(150_000)),
    "fences": "```\n" * 250_000,
    "brackets": "{" * 1_000_000,
    "json": '{"a":' * 200_000,
    "lines": "\n" * 1_000_000,
    "spaces": " " * 1_000_000,
    "digits": "1" * 1_000_000,
    "numbers": "1 failed, " * 100_000,
    "dots": "a." * 500_000,
    "errors": "Error: " * 140_000,
    "marks": "?!" * 500_000,
    "chinese": "不要太长" * 250_000,
    "please": "please make it please " * 45_000,
    "tracebacks": "Traceback (most recent call last):\n  File\n" * 23_000,
    "modules": "a.b.c.d.e.f" * 90_000,
    "unseen": "\u200b\x00\x1b[" * 250_000,
    "surrogates": "\ud800" * 1_000_000,
    "combining": "İ" * 1_000_000,
    "you": "you " * 250_000,
    "it is": "it is so " * 110_000,
}


@pytest.mark.parametrize("name", list(HOSTILE))
@pytest.mark.parametrize("role", ["user", "tool"])
def test_a_hostile_megabyte_is_judged_within_a_second(name: str, role: str) -> None:
    state = NextState("t", "reply", (Message(role, HOSTILE[name]),), 0.0)
    request = (Message("user", HOSTILE[name]),)
    start = time.process_time()
    decide(rule_votes(request, Message("assistant", "```x```"), state))
    assert time.process_time() - start < 1.0


def test_many_messages_are_bounded_too() -> None:
    state = NextState("t", "reply", tuple(Message("tool", "not an error " * 400) for _ in range(300)), 0.0)
    start = time.process_time()
    rule_votes(ASKED, ANSWERED, state)
    assert time.process_time() - start < 2.0
