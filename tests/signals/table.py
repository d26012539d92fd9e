"""The labelled next states: one per line, tab-separated, with \\n, \\t and \\\\ escaped."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

from stereorl.data import Message, NextState, ToolCall
from stereorl.signals.judge import decide
from stereorl.signals.rules import rule_votes

_ESCAPES = {"\\n": "\n", "\\t": "\t", "\\\\": "\\"}


class Case(NamedTuple):
    line: int
    label: int  # 0: ambiguous, abstaining is right
    tool: str | None
    request: str
    text: str

    @property
    def reply(self) -> Message:
        if self.tool is None:
            return Message("assistant", "Here you are.")
        return Message("assistant", "", tool_calls=(ToolCall("c1", self.tool, "{}"),))

    @property
    def next_state(self) -> NextState:
        message = Message(
            "tool" if self.tool else "user", self.text, tool_call_id="c1" if self.tool else None
        )
        return NextState("t", "reply", (message,), 0.0)

    @property
    def reward(self) -> int | None:
        return decide(rule_votes((Message("user", self.request),), self.reply, self.next_state)).reward


def load(name: str) -> list[Case]:
    lines = (Path(__file__).parent / f"next_states_{name}.tsv").read_text(encoding="utf-8").split("\n")
    cases = []
    for number, line in enumerate(lines, 1):
        if not line or line.startswith("#"):
            continue
        label, role, request, text = (
            re.sub(r"\\[nt\\]", lambda m: _ESCAPES[m.group()], cell) for cell in line.split("\t")
        )
        cases.append(Case(number, int(label), role.partition(":")[2] or None, request, text))
    return cases


class Score(NamedTuple):
    accuracy: float  # of those voted on
    abstained: float  # of all
    wrong: list[Case]
    silent: list[Case]


def score(cases: list[Case]) -> Score:
    voted = [(case, reward) for case in cases if (reward := case.reward) is not None]
    wrong = [case for case, reward in voted if reward != case.label]
    silent = [case for case in cases if case.reward is None]
    return Score(1 - len(wrong) / len(voted), len(silent) / len(cases), wrong, silent)
