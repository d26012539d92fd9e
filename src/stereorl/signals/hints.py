"""Hints: how the reply should have been different, in the user's own words.

A hint quotes; it never paraphrases, because small models invert what they paraphrase. Praise, greetings and a bare
"no" around the correction are left out, quoted and pasted blocks too, and the text is bounded. Only user messages and
explicit feedback can yield one, unless `trust` names "tool": then an error line goes into a fixed template.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from itertools import groupby
from typing import Literal

from stereorl.data import Feedback, Hint, Message, NextState
from stereorl.signals.environment import read_environment
from stereorl.signals.text import BLOCK, FILL, bounded, mask
from stereorl.signals.user_words import NEGATIVE, Reading, Said, is_output, read, user_text

MIN_CHARS = 10  # a hint must be longer; a Chinese one longer than MIN_CHARS_CJK
MIN_CHARS_CJK = 5
TOOL_TEMPLATE = "The tool call failed with: {line}. Act so that this does not happen."
LONGEST_QUOTATION = 80  # inside a hint; a longer one is foreign text
_TOOL_LINE = 160
_FOREIGN = re.compile(f"{FILL}+|{BLOCK}+")
_CJK = re.compile("[\u3400-\u9fff]")
_LEADING = re.compile(
    r"^(?:(?:but|and|so|however|though|yet|also|ok|okay|well|hmm+|oh|no)\b[,\s]*|(?:但是|不过|可是|然而|只是|但|嗯|那)[，,\s]*)+",
    re.I,
)
_SENTENCES = re.compile(r"[.!?](?=\s|$)|[。！？；]|\n")


def extract_hints(
    next_state: NextState | None,
    feedback: Sequence[Feedback] = (),
    *,
    trust: Collection[str] = ("user",),
    max_chars: int = 400,
    reply: Message | None = None,
    request: Sequence[Message] = (),
) -> tuple[Hint, ...]:
    """Candidates in the order of trust, accepted or refused with a reason: feedback, user, tool.

    A regeneration, thanks, or silence yield nothing at all. `reply` and `request` sharpen the reading of short words.
    """
    hints = [
        _of_feedback(f, max_chars) for f in sorted(feedback, key=lambda f: -f.created_at) if f.correction
    ]
    if next_state is not None and next_state.kind == "reply":
        hints += _of_user(next_state, request, reply, trust, max_chars)
        hints += _of_tool(next_state, reply or Message("assistant"), trust, max_chars)
    return tuple(hints)


def own_words(messages: Sequence[Message]) -> str:
    """What the user wrote, without what they pasted: fences, documents, command output, long quotations."""
    text = bounded(user_text(messages))
    masked = mask(text)
    kept, at = [], 0
    for run in _FOREIGN.finditer(masked):
        edge = 1 if masked[run.start()] == BLOCK else 0  # a block's mask has a line's end on either side
        if edge or run.end() - run.start() > LONGEST_QUOTATION:
            kept.append(text[at : run.start() - edge] + "\n")
            at = run.end() + edge
    return "\n".join(line for line in "".join([*kept, text[at:]]).split("\n") if line.strip()).strip()


def _of_feedback(feedback: Feedback, max_chars: int) -> Hint:
    text = shorten(" ".join(bounded(feedback.correction or "").split()), max_chars)
    kinds = {s.kind for s in read([Message("user", text)]).said}
    if kinds and kinds <= {"praise", "moves_on"}:
        return Hint(text, "feedback", False, "no correction in the feedback")
    return _sized(text, "feedback", "explicit correction")


def _of_user(
    next_state: NextState,
    request: Sequence[Message],
    reply: Message | None,
    trust: Collection[str],
    max_chars: int,
) -> Iterator[Hint]:
    reading = read(next_state.messages, request, reply)
    if reading.value != -1:
        return
    text = quote(reading)
    if text and len(text) <= _least(text):  # "it's 391." says little without the "wrong" before it
        text = quote(reading, generous=True)
    text = shorten(text, max_chars)
    if not text:
        said = shorten(" ".join(user_text(next_state.messages)[:2000].split()), max_chars)
        yield Hint(said, "user", False, "no correction in the user's words")
    elif "user" not in trust:
        yield Hint(text, "user", False, "not trusted: user")
    else:
        yield _sized(text, "user", "the user's correction, quoted")


def _of_tool(next_state: NextState, reply: Message, trust: Collection[str], max_chars: int) -> Iterator[Hint]:
    if not any(m.role == "tool" or is_output(m.content) for m in next_state.messages):
        return
    outcome = read_environment(reply, next_state)
    if outcome.value != -1 or not outcome.line:
        return
    line = " ".join(bounded(outcome.line).split()).replace('"', "'")[:_TOOL_LINE]
    text = shorten(TOOL_TEMPLATE.format(line=f'"{line}"'), max_chars)
    if "tool" in trust:
        yield Hint(text, "tool", True, f"the environment's error: {outcome.reason}")
    else:
        yield Hint(text, "tool", False, "not trusted: tool")


def quote(reading: Reading, *, generous: bool = False) -> str:
    """The correcting sentences of a negative reading, trimmed of praise and (unless `generous`) bare refusals."""
    parts: list[str] = []
    corrected = False
    directed = any(s.kind == "directive" for s in reading.said)
    for _, group in groupby(reading.said, key=lambda s: s.clause.sentence):
        sentence = list(group)
        keep = _correcting(sentence, directed=directed, corrected=corrected, generous=generous)
        corrected = corrected or any(s.kind in NEGATIVE for s in sentence)
        if keep:
            part = _cut(reading, keep[0], keep[-1])
            parts.append(part if not part or parts else _LEADING.sub("", part))
    return _joined([p for p in parts if p])


def _joined(parts: Sequence[str]) -> str:
    ended = [p if p[-1] in ".!?。！？；…" else p + "." for p in parts[:-1]]
    return " ".join([*ended, *parts[-1:]])


def _correcting(sentence: Sequence[Said], *, directed: bool, corrected: bool, generous: bool) -> list[Said]:
    """The clauses to quote: from the first to the last that instructs, or that states what is right after a "no"."""
    useful = [s.kind == "directive" or (generous and s.kind in NEGATIVE) for s in sentence]
    after = corrected
    for index, said in enumerate(sentence):
        after = after or said.kind in NEGATIVE
        stated = said.kind is None and after and not said.clause.asks and not said.new_task
        # Plain words count beside a directive in their own sentence, or when nothing else says what is right.
        useful[index] = useful[index] or (stated and (any(useful) or corrected or not directed))
    if not any(useful):
        return []
    first = useful.index(True)
    last = len(useful) - 1 - useful[::-1].index(True)
    return list(sentence[first : last + 1])


def _cut(reading: Reading, first: Said, last: Said) -> str:
    start, end = first.clause.start, last.clause.end
    while end < len(reading.masked) and reading.masked[end] in ".!?。！？；…":
        end += 1
    masked = reading.masked[start:end]
    text = reading.text[start:end]
    for run in _FOREIGN.finditer(masked):
        if masked[run.start()] == BLOCK or run.end() - run.start() > LONGEST_QUOTATION:
            text = text[: run.start()] + "\x00" * (run.end() - run.start()) + text[run.end() :]
    words = " ".join(text.replace("\x00", " ").split())
    return words if re.search(r"\w", words) and not words.endswith((":", "：")) else ""


def _sized(text: str, source: Literal["user", "feedback"], reason: str) -> Hint:
    if len(text) <= _least(text):
        return Hint(text, source, False, "too short")
    return Hint(text, source, True, reason)


def _least(text: str) -> int:
    return MIN_CHARS_CJK if _CJK.search(text) else MIN_CHARS


def shorten(text: str, max_chars: int) -> str:
    """At most `max_chars` characters, cut at the last sentence end that fits, else at a space."""
    text = text.strip()
    if len(text) <= max_chars:
        return text
    head = text[:max_chars]
    ends = [m.end() for m in _SENTENCES.finditer(head)]
    if ends:
        return head[: ends[-1]].strip()
    space = head.rfind(" ")
    return head[: space if space > max_chars // 2 else max_chars].strip()
