"""Untrusted text made safe to read: bounded, stripped of unseen characters, and split into clauses.

`mask` hides what the user quotes (code fences, quotations, pasted documents, command output) behind filler of the
same length, so that offsets stay valid: cues are looked for in the mask, words are quoted from the original.
Everything here is linear in a length that `bounded` has capped, or runs on lines that it has capped.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

FILL = "\ufffc"  # stands for an inline quotation; neither a word character nor white space
BLOCK = "\ue000"  # stands for a block: a fence, a pasted document, command output
MAX_LINE = 600
_LINES = re.compile("\r\n?|[\u2028\u2029\u0085]")
_ANSI = re.compile(r"\x1b\[[0-9;?]{0,20}[A-Za-z]")
_UNSEEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u00ad\u200b-\u200f\u202a-\u202e\u2060-\u206f\ufe00-\ufe0f\ufeff\ud800-\udfff"
    "\U000e0000-\U000e007f]"
)
_TEMPLATE = re.compile(r"<\|[^|<>\n]{0,40}\|>")  # chat-template markers: never the user's own words
_CURLY = str.maketrans({"\u2018": "'", "\u2019": "'", "\u02bc": "'", FILL: " ", BLOCK: " "})

_FENCE = re.compile(r"^[ \t]{0,3}(```|~~~)", re.M)
_TAG = re.compile(r"<([A-Za-z_][\w-]{0,30})(?:\s[^<>\n]{0,200})?>")
_QUOTED_LINE = re.compile(r"^[ \t]{0,3}(?:>|\$ |>>> |% (?=\w)|E   ).*$", re.M)
_TRACEBACK = re.compile(
    r"^[ \t]*Traceback \(most recent call last\):[^\n]*(?:\n[ \t]+[^\n]*)*(?:\n[^\n]+)?", re.M
)
_INLINE = tuple(
    re.compile(p)
    for p in (
        r"`[^`\n]{1,400}`",
        r'"[^"\n]{1,400}"',
        r"“[^”]{1,1000}”",
        r"„[^“”\n]{1,400}[“”]",
        r"«[^»\n]{1,400}»",
        r"「[^」]{1,1000}」",
        r"『[^』]{1,1000}』",
        r"(?<!\w)'[^'\n]{1,200}'(?!\w)",
    )
)
# A line that announces foreign text; what follows it is not the user's own.
PASTE_LEAD = re.compile(
    r"(?:\b(?:translate|summari[sz]e|proof-?read|classify|paraphrase|spell-?check|analy[sz]e|review)\b[^\n:：]{0,80}"
    r"|\b(?:this|the|my|following|below|an?|here(?:'s| is)(?: the| an?| my)?) (?:\w+ )?(?:text|e-?mail|article|"
    r"document|letter|essay|passage|paragraph|review|message|transcript|log|logs|output|conversation|poem|story|quote|"
    r"contract|post|tweet|abstract|file|data)\b[^\n:：]{0,40}"
    r"|\b(?:page|web ?site|site|tool|logs?|output|terminal|console|file|document|e-?mail|compiler)"
    r" (?:says?|said|reads?|shows?|printed|prints|returned)\b[^\n:：]{0,20}"
    r"|\bfollowing\b[^\n:：]{0,40}"
    r"|(?:翻译|总结|概括|校对|润色|分析|下面|以下|这段|这篇|这封)[^\n:：]{0,40})[:：][ \t]*(?=\S|\n)",
    re.I,
)

_SENTENCE_END = re.compile(r"[.!?…]+(?=[\s\ufffc\ue000)\]}]|$)|[。！？；]+|\n+")
_CLAUSE_END = re.compile(
    r"[,;:]+(?=\s|$)|[，：；]|\s[-–—]+\s|—"
    r"|\s(?=(?:but|however|though|although|yet)\s)|(?<=[\u4e00-\u9fff])(?=(?:但是|不过|可是|然而|只是|但(?!愿)))",
    re.I,
)
_WORDLIKE = re.compile("[\\w?？\U0001f300-\U0001faff\u2600-\u27bf]")


@dataclass(frozen=True, slots=True)
class Clause:
    """`mask[start:end]`, in sentence number `sentence`; `asks`: the last clause before a question mark."""

    start: int
    end: int
    sentence: int
    asks: bool


def bounded(text: str, *, head: int = 4000, tail: int = 4000) -> str:
    """The first and last characters of `text`, without unseen ones, every line cut to `MAX_LINE`."""
    if len(text) > head + tail:
        text = text[:head] + "\n" + text[-tail:]
    text = unseen_removed(text).translate(_CURLY)
    return "\n".join(line[:MAX_LINE] for line in text.split("\n"))


def unseen_removed(text: str) -> str:
    """`text` with plain line ends, without terminal codes, unseen characters and chat-template markers."""
    return _TEMPLATE.sub(" ", _UNSEEN.sub("", _ANSI.sub("", _LINES.sub("\n", text))))


def fold(text: str) -> str:
    """Lower case that never changes the length."""
    low = text.lower()
    return low if len(low) == len(text) else "".join(c.lower() if len(c.lower()) == 1 else c for c in text)


def blocks(text: str) -> list[tuple[int, int]]:
    """Spans of fences, tagged blocks, quoted lines and tracebacks, in order, not overlapping."""
    spans = [*_fences(text), *_tagged(text)]
    spans += [m.span() for pattern in (_TRACEBACK, _QUOTED_LINE) for m in pattern.finditer(text)]
    merged: list[tuple[int, int]] = []
    for start, end in sorted(spans):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged


def mask(text: str) -> str:
    """`text` with everything quoted replaced by filler; same length. Blocks also end the sentence before them."""
    for start, end in blocks(text):
        text = _hide(text, start, end)
    for pattern in _INLINE:
        text = pattern.sub(lambda m: FILL * len(m.group()), text)
    lead = PASTE_LEAD.search(text)
    if lead and len(text[lead.end() :].strip()) > 0 and not _is_list(text[lead.end() :]):
        text = _hide(text, lead.end(), len(text))
    return text


def clauses(masked: str) -> Iterator[Clause]:
    """The clauses of a masked text that hold a word, in order."""
    sentence, start = 0, 0
    ends = [m.span() for m in _SENTENCE_END.finditer(masked)] + [(len(masked), len(masked))]
    for stop, following in ends:
        mark = masked[stop:following]
        pieces = _pieces(masked, start, stop)
        for piece in pieces:
            yield Clause(*piece, sentence, bool({"?", "？"} & set(mark)) and piece == pieces[-1])
        sentence += bool(pieces)
        start = following


def _pieces(masked: str, start: int, stop: int) -> list[tuple[int, int]]:
    cuts = [start]
    for match in _CLAUSE_END.finditer(masked, start, stop):
        cuts += [match.start(), match.end()]
    cuts.append(stop)
    spans = [_strip(masked, a, b) for a, b in zip(cuts[::2], cuts[1::2], strict=True)]
    return [(a, b) for a, b in spans if _WORDLIKE.search(masked, a, b)]


def _strip(masked: str, start: int, end: int) -> tuple[int, int]:
    while start < end and masked[start] in " \t\n*_#\"'()[]-•":
        start += 1
    while start < end and masked[end - 1] in " \t\n*_#\"'()[]-~,;":
        end -= 1
    return start, end


def _hide(text: str, start: int, end: int) -> str:
    size = end - start
    return text[:start] + ("\n" + BLOCK * (size - 2) + "\n" if size > 1 else "\n" * size) + text[end:]


def _fences(text: str) -> Iterator[tuple[int, int]]:
    opened: re.Match[str] | None = None
    for match in _FENCE.finditer(text):
        if opened is None:
            opened = match
        elif match.group(1) == opened.group(1):
            yield opened.start(), match.end()
            opened = None
    if opened is not None:
        yield opened.start(), len(text)


def _tagged(text: str) -> Iterator[tuple[int, int]]:
    reached, missing = 0, set[str]()
    for match in _TAG.finditer(text):
        name = match.group(1)
        if match.start() < reached or name in missing:
            continue
        close = text.find(f"</{name}>", match.end())
        if close < 0:
            missing.add(name)
            continue
        reached = close + len(name) + 3
        yield match.start(), reached


def _is_list(text: str) -> bool:
    """Bullets after a colon are the user's points, not a pasted document."""
    return re.match(r"\s*(?:[-*•]|\d{1,2}[.)、])\s", text) is not None
