"""The examples in a small model's prompt, from `prompts/*_examples.txt`, and their orders for independent votes."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from stereorl.data import Message
from stereorl.signals.ask import SMALL, prompt
from stereorl.signals.fence import fence

START = "\\boxed{"


@dataclass(frozen=True, slots=True)
class Example:
    """One case with its answer; `role` says whose next state `text` is (user or tool)."""

    verdict: str
    request: str
    reply: str
    role: str
    text: str
    hint: str = ""

    def messages(self) -> tuple[Message, Message]:
        """The case, fenced just as a real one is, and the answer to it."""
        parts = (
            fence("request", self.request, limit=SMALL.request),
            fence("reply", self.reply, limit=SMALL.reply),
            fence(self.role, self.text, limit=SMALL.next_state),
        )
        told = f"{START}{self.verdict}}}" + (f" {self.hint}" if self.hint else "")
        return Message("user", "\n".join(parts)), Message("assistant", told)


def examples(name: str) -> tuple[Example, ...]:
    """The examples of `prompts/<name>.txt`: blocks of `key: value` lines; a `#` line is a remark."""
    blocks = prompt(name).split("\n\n")
    return tuple(_example(block) for block in blocks)


def orders(found: Sequence[Example], votes: int) -> list[tuple[Example, ...]]:
    """`votes` different prompts: first as they stand, then with the examples of each verdict in another order.

    The sequence of verdicts stays as it is: a small model leans towards the verdicts that it read last, so another
    sequence is another judge (docs/results/judges.md). Deterministic.
    """
    out = [tuple(found)]
    for number in range(1, votes):
        shuffled = list(found)
        random.Random(number).shuffle(shuffled)
        by_verdict = {verdict: [e for e in shuffled if e.verdict == verdict] for verdict in ("+1", "-1", "0")}
        out.append(tuple(by_verdict[example.verdict].pop() for example in found))
    return out


def shots(system: str, found: Sequence[Example]) -> tuple[Message, ...]:
    """The messages before a case."""
    return Message("system", prompt(system)), *(m for example in found for m in example.messages())


def _example(block: str) -> Example:
    lines = [line for line in block.splitlines() if line.strip() and not line.startswith("#")]
    values = dict(line.split(": ", 1) for line in lines)
    role = "tool" if "tool" in values else "user"
    told = {key: value.replace("\\n", "\n") for key, value in values.items() if key in ("request", "reply")}
    text = values[role].replace("\\n", "\n")
    return Example(values["verdict"], told["request"], told["reply"], role, text, values.get("hint", ""))
