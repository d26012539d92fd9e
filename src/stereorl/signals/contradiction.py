"""What a model made of the user's words, held against those words: a hint that says something else must not teach.

Small models invert what they paraphrase ("no bullet points" became "use bullet points"). The check is deliberately
suspicious: a good candidate that it drops costs little, since the quoted sentence is still there.
"""

from __future__ import annotations

import re

from stereorl.signals.parity import Meaning, meaning

_MARKS = re.compile(
    r"<{2,}|>{2,}|\bboxed\b|HINT_(?:START|END)|<\|[^|\n]*\|>|```|\bfence[sd]?\b|characters left out|</?\w+>",
    re.I,
)
_SENTENCES = re.compile(r"(?<=[.!?])\s|[。！？\n]")
_CJK = re.compile("[\u3400-\u9fff]")
MIN_CHARS, MIN_CHARS_CJK = 10, 5
MAX_READ = 4000  # characters of either text that are compared


def contradiction(candidate: str, user_words: str, *, strict: bool = False) -> str | None:
    """Why `candidate` must not teach, given what the user wrote; None when nothing speaks against it.

    `strict`: it also has to be about something that the user named, and name no quality that the user did not (asked of
    a small model, which otherwise writes about the examples in its prompt).
    """
    text = candidate.strip()[:MAX_READ]
    if len(text) <= (MIN_CHARS_CJK if _CJK.search(text) else MIN_CHARS):
        return "too short"
    if _MARKS.search(text):
        return "it copies the prompt's marks"
    if _plain(text) in {_plain(part) for part in (user_words, *_SENTENCES.split(user_words))}:
        return None  # a quotation of whole sentences
    wanted, said = meaning(user_words[:MAX_READ], complains=True), meaning(text, complains=False)
    return (
        _inverted(wanted, said) or _invented(wanted, said) or (_unrelated(wanted, said) if strict else None)
    )


def _plain(text: str) -> str:
    return " ".join(text.lower().strip(" .!?。！？\n\t").split())


def _inverted(wanted: Meaning, said: Meaning) -> str | None:
    """A word that one of the two wants and the other wants gone; axes first, they are named for a reader."""
    for stem in sorted(wanted.stems & said.stems):
        theirs, ours = wanted.polarity[stem], said.polarity[stem]
        if (theirs == {1} and ours == {-1}) or (theirs == {-1} and ours == {1}):
            return f"it inverts the user's words: {stem.lstrip('#')}"
    return None


def _invented(wanted: Meaning, said: Meaning) -> str | None:
    numbers = said.numbers - wanted.numbers - (set() if wanted.numbers else {"1"})
    if numbers:
        return f"a number that the user did not give: {min(numbers)}"
    names = said.names - wanted.names
    return f"it names what the user did not: {min(names)}" if names else None


def _unrelated(wanted: Meaning, said: Meaning) -> str | None:
    added = {stem for stem in said.stems - wanted.stems if stem.startswith("#")}
    if added:
        return f"it adds what the user did not say: {min(added)[1:]}"
    if wanted.stems & said.stems or (wanted.names & said.names) or (wanted.numbers & said.numbers):
        return None
    return "it is about nothing that the user named"
