"""The examples in a small model's prompt, from `prompts/*_examples.txt`, and their orders for independent votes."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from stereorl.data import Message
from stereorl.signals.ask import SMALL, prompt
from stereorl.signals.fence import fence

START = "\\boxed{"
SHOWN = ("request", "reply", "user", "tool")


@dataclass(frozen=True, slots=True)
class Example:
    """One case with its answer; `shown` holds (whose, text): request, reply, user, tool, as far as they are shown."""

    verdict: str
    shown: tuple[tuple[str, str], ...]
    hint: str = ""

    def messages(self) -> tuple[Message, Message]:
        """The case, fenced just as a real one is, and the answer to it."""
        parts = [fence(name, text, limit=SMALL.next_state) for name, text in self.shown]
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
    shown = ((name, text.replace("\\n", "\n")) for name, text in values.items() if name in SHOWN)
    return Example(values["verdict"], tuple(shown), values.get("hint", ""))
