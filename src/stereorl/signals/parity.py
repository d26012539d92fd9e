"""Whether a sentence wants a thing or wants it gone, word by word: the ground of the contradiction check.

No grammar: within a clause each negating word turns round what follows it, so two of them cancel ("don't skip the
units"). A verb that asks for something, "but" and the clause's end set it right again. After a comma without such a
verb it is unknown whether a negation still holds, and unknown words accuse nobody.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from itertools import pairwise

from stereorl.signals import cues_polarity as words

_CLAUSE = re.compile(r"[.!?;:\n。！？；：…]+|\s[-–—]+\s|—|\bbut\b|但是|但|不过", re.I)
_PART = re.compile(r"[,，、]+")
_ENOUGH = re.compile(r"(?:\bnot|n't)(?: (?:nearly|quite|really|at all))? (\w+) enough\b")
_BOUNDS = tuple((re.compile(pattern), f" {name} ") for name, pattern in words.BOUNDS.items())
_LATIN = re.compile(r"[a-z][a-z'+#]*|\d+(?:[.,:]\d+)*")
_CJK = re.compile("[\u3400-\u9fff]+")
_DIGITS = re.compile(r"\d+(?:[.,:]\d+)*")
_NUMBER_ZH = re.compile("(?<![第统唯之])([一二两三四五六七八九十])(?=[个句行段步条点种次页字])")
_OF_USERS = (("complaint", words.COMPLAINTS_ZH), ("omission", words.OMISSIONS_ZH))
_OF_ALL = (("negator", words.NEGATORS_ZH), ("resume", words.RESUME_ZH))
_ORDINAL_ZH = re.compile("第([二三四五六七八九十])")
_STEMS = re.compile(r"(?:ies|es|s|ing|ed|'s|')$")


@dataclass
class Meaning:
    """`polarity[stem]`: the signs (+1 wanted, -1 unwanted, 0 unknown) with which a word occurs; axes begin with "#"."""

    polarity: dict[str, set[int]] = field(default_factory=dict)
    names: set[str] = field(default_factory=set)
    numbers: set[str] = field(default_factory=set)

    def add(self, stem: str, sign: int) -> None:
        self.polarity.setdefault(stem, set()).add(sign)

    @property
    def stems(self) -> set[str]:
        return set(self.polarity)


def meaning(text: str, *, complains: bool) -> Meaning:
    """Read `text`. `complains`: "you used ..." in it speaks of a fault (the user's words do, a hint's do not)."""
    text = text.lower().replace("\u2019", "'")
    for pattern, name in _BOUNDS:
        text = pattern.sub(name, text)
    found = Meaning(names=_names(text), numbers=_numbers(text))
    for clause in _CLAUSE.split(_ENOUGH.sub(r"more \1", text)):
        sign = 1
        for part in _PART.split(clause):
            start = 1 if sign == 1 or any(token in words.VERBS for token in _LATIN.findall(part)) else 0
            sign = _latin(part, found, start=start, complains=complains)
            _chinese(part, found, complains=complains)
    return found


def stem(word: str) -> str:
    """A crude stem: "bullets" and "bullet", "emojis" and "emoji" are one."""
    short = _STEMS.sub("", word)
    short = short if len(short) >= 3 else word
    return short[:-1] if len(short) > 4 and short.endswith(("e", "y")) else short


def _latin(part: str, found: Meaning, *, start: int, complains: bool) -> int:
    sign, changing, since = start, False, 0  # `since`: content words after the last negator
    tokens = _LATIN.findall(part)
    for at, token in enumerate(tokens):
        pair = (token, tokens[at + 1]) if at + 1 < len(tokens) else (token, "")
        before = tokens[at - 1] if at else ""
        if complains and before == "you" and token in words.COMPLAINTS:
            sign, since = -abs(sign or 1), 0
        if pair in words.NEGATING_PAIRS or token in words.NEGATORS or token.endswith("n't"):
            sign, since, changing = -(sign or 1), 0, token in words.CHANGES
        elif (token in words.VERBS and (since or sign == 0)) or (changing and token in words.UNTIL):
            sign, since, changing = 1, 0, False
        elif token not in words.FUNCTION and (before, token) not in words.NEGATING_PAIRS:
            _add_latin(token, sign, found)
            since += 1
    return sign


def _add_latin(token: str, sign: int, found: Meaning) -> None:
    axes = [(axis, end) for axis, end, word in _ends() if word == token]
    for axis, end in axes:
        found.add(f"#{axis}", sign * end)
    if not axes and not token[0].isdigit() and token not in words.NUMBERS:
        found.add(stem(token), sign)


def _chinese(part: str, found: Meaning, *, complains: bool) -> None:
    for run in _CJK.findall(part):
        sign, since = 1, True  # `since`: content stood after the last negator
        for mark, piece in _marked(run, complains=complains):
            if mark == "":
                _add_chinese(piece, sign, found)
                since = True
            elif mark == "negator":
                sign, since = -sign, False
            elif mark == "complaint":
                sign = -1
            elif mark == "omission" or since:
                sign = 1


def _marked(run: str, *, complains: bool) -> Iterator[tuple[str, str]]:
    """`run` cut at negating and resuming words, each piece with its kind ("" for content)."""
    held = ""
    while run:
        kind, size = _mark(run, complains=complains)
        if not kind:
            held += run[0]
            run = run[1:]
            continue
        if held:
            yield "", held
        yield kind, run[:size]
        held, run = "", run[size:]
    if held:
        yield "", held


def _mark(run: str, *, complains: bool) -> tuple[str, int]:
    for kind, table in (_OF_USERS if complains else ()) + _OF_ALL:
        for word in table:
            if run.startswith(word):
                return kind, len(word)
    return "", 0


def _add_chinese(piece: str, sign: int, found: Meaning) -> None:
    for axis, end, word in _ends():
        if not word.isascii() and word in piece:
            found.add(f"#{axis}", sign * end)
            piece = piece.replace(word, "\ufffc")
    for run in _CJK.findall(piece):
        for a, b in pairwise(run):
            if a not in words.FUNCTION_ZH and b not in words.FUNCTION_ZH:
                found.add(a + b, sign)


def _names(text: str) -> set[str]:
    tokens = set(_LATIN.findall(text))
    return {
        name
        for name, spelt in words.NAMES.items()
        if any(s in tokens if s.isascii() else s in text for s in spelt.split())
    }


def _numbers(text: str) -> set[str]:
    tokens = _LATIN.findall(text)
    found = {match.group().replace(",", "") for match in _DIGITS.finditer(text)}
    found |= {words.NUMBERS[token] for token in tokens if token in words.NUMBERS}
    found |= {words.NUMBERS[match.group(1)] for match in _NUMBER_ZH.finditer(text)}
    found |= {words.ORDINALS[words.NUMBERS[match.group(1)]] for match in _ORDINAL_ZH.finditer(text)}
    ones = [at for at, token in enumerate(tokens) if token == "one"]
    return found | ({"1"} if any(set(tokens[at + 1 : at + 4]) & words.COUNTED for at in ones) else set())


@cache
def _ends() -> tuple[tuple[str, int, str], ...]:
    """(axis, which end of it, word)."""
    return tuple(
        (axis, end, word)
        for axis, ends in words.AXES.items()
        for end, spelt in zip((1, -1), ends, strict=True)
        for word in spelt.split()
    )
