"""What the user's own words say about the reply: clause by clause, by the tables of cues.

A change request is negative even beside thanks. Quoted and pasted text does not count. Questions and openings of a
new task do not count, unless they ask for the reply to be different. No cue at all: the words abstain.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from stereorl.data import Message
from stereorl.data.signal import Reward
from stereorl.signals import cues_en, cues_zh
from stereorl.signals.cues import Cue, Kind, compiled
from stereorl.signals.repeat import repeats
from stereorl.signals.text import BLOCK, FILL, Clause, bounded, clauses, fold, mask

MAX_CLAUSE = 300
MAX_CLAUSES = 200
NEGATIVE: frozenset[Kind] = frozenset({"bare", "complaint", "directive"})
POSITIVE: frozenset[Kind] = frozenset({"praise", "moves_on"})
_CJK = re.compile("[\u3400-\u9fff]")
_WORD = re.compile(r"[a-z0-9']+")
_EDGE = re.compile(
    r"^(?:(?:and|but|so|ok|okay|well|oh|hmm+|hm|um|uh|however|though|although|yet|sorry|hey|hi|hello|actually|"
    r"honestly|look|please note|i think|maybe)(?: |$))+"
    r"|^(?:嗯|哦|啊|呃|那个|那|但是|不过|可是|然而|只是|但|请问|你好|抱歉)+(?=.)"
)
_POINTS = re.compile(
    r"\b(?:you|your|this|that|it|these|those|still|again|answer|reply|response|please|instead|too)\b"
    r"|[你这那又还再]|答案|回答|结果|代码|太"
)
_OUTPUT = re.compile(
    r"^\W{0,3}(?:observation|output|stdout|stderr|tool[ _](?:result|output)|command output|exit code)\b.{0,40}[:：]",
    re.I,
)


@dataclass(frozen=True, slots=True)
class Said:
    """One clause of the user's with the kind it was read as (None: no cue) and the cue's name."""

    clause: Clause
    kind: Kind | None
    cue: str
    new_task: bool = False


@dataclass(frozen=True, slots=True)
class Reading:
    """`value` None: the words abstain. `text` is bounded; clauses' offsets point into it and into `masked`."""

    value: Reward | None
    reason: str
    text: str
    masked: str
    said: tuple[Said, ...]


def user_text(messages: Sequence[Message]) -> str:
    """The words of all user messages; a message that is nothing but command output is none of them."""
    return "\n\n".join(m.content for m in messages if m.role == "user" and not is_output(m.content))


def is_output(content: str) -> bool:
    """True for a user message in which an agent's harness reports a command's output."""
    head = content[:400].lstrip()
    return bool(_OUTPUT.match(head)) or head.startswith(
        ("<returncode>", "<output>", "<tool_response>", "<tool_result>", "<stdout>")
    )


def read(
    messages: Sequence[Message], request: Sequence[Message] = (), reply: Message | None = None
) -> Reading:
    """Read the user's part of a next state to the conversation `request` + `reply`."""
    text = bounded(user_text(messages))
    masked = mask(text)
    folded = fold(masked)
    found = [
        _read_clause(folded, clause) for clause, _ in zip(clauses(masked), range(MAX_CLAUSES), strict=False)
    ]
    said = tuple(_without_topic(_in_context(found, folded, reply), folded))
    value, reason = _weigh(said, folded, request)
    return Reading(value, reason, text, masked, said)


def _weigh(said: Sequence[Said], folded: str, request: Sequence[Message]) -> tuple[Reward | None, str]:
    if not said:
        return None, "no words of the user's"
    own_mistake = any(s.kind == "own_mistake" for s in said)
    bad = [s.cue for s in said if s.kind in NEGATIVE and not own_mistake]
    if bad:
        return -1, ", ".join(dict.fromkeys(bad))
    good = [s.cue for s in said if s.kind in POSITIVE]
    if own_mistake and not good:
        return None, "the user corrects their own mistake"
    if not all(s.kind in POSITIVE for s in said) and repeats(_plain(folded), request):
        return -1, "the request is repeated"
    if good:
        return 1, ", ".join(dict.fromkeys(good))
    return None, "no cue in the user's words"


def _read_clause(folded: str, clause: Clause) -> Said:
    words = " ".join(_plain(folded[clause.start : clause.end]).split())[:MAX_CLAUSE]
    words = _EDGE.sub("", words).strip()
    chinese = bool(_CJK.search(words))
    language = cues_zh if chinese else cues_en
    new_task = bool(language.NEW_TASK.search(words))
    asks = (clause.asks or bool(language.QUESTION.search(words))) and not (chinese and len(words) < 2)
    wishes = bool(language.REQUEST.search(words))
    kind: Kind | None = None
    name = ""
    rest = words
    for cue in (*cues_zh.CUES, *cues_en.CUES) if chinese else cues_en.CUES:
        rest, hits = compiled(cue.pattern).subn(lambda m: " " * len(m.group()), rest)
        if hits and _counts(cue, new_task=new_task, asks=asks, wishes=wishes) and _stronger(cue.kind, kind):
            kind, name = cue.kind, cue.name
    if kind == "bare" and _left(rest) >= 3:
        kind = "directive"  # "that is wrong because ...": what surrounds the cue says more than no
    return Said(clause, kind, name, new_task)


def _counts(cue: Cue, *, new_task: bool, asks: bool, wishes: bool) -> bool:
    """A question or a new task has cues about its own subject; only wishes and complaints concern the reply."""
    if cue.kind == "complaint":
        return True
    if cue.kind == "moves_on":
        return not asks or wishes or new_task or cue.name == "moves on"
    if new_task:
        return cue.name in ("again", "another", "from now on") and cue.kind in NEGATIVE
    if asks:
        return wishes and cue.kind in ("directive", "bare")
    return True


_RANK: dict[Kind | None, int] = {
    None: 0, "neutral": 0, "moves_on": 1, "praise": 2, "own_mistake": 3, "bare": 4, "complaint": 5, "directive": 6
}  # fmt: skip


def _stronger(new: Kind, old: Kind | None) -> bool:
    return _RANK[new] > _RANK[old]


def _left(rest: str) -> int:
    """Words that no cue explained; a Chinese character counts as half a word."""
    return len(_WORD.findall(rest)) + len(_CJK.findall(rest)) // 2


def _in_context(found: Sequence[Said], folded: str, reply: Message | None) -> list[Said]:
    """Resolve a bare "no": it answers the assistant's question, or opens an approval ("no, it's perfect")."""
    out = list(found)
    if not out or _bare_no(folded, out[0].clause) is False:
        return out
    asked = reply is not None and reply.content.rstrip().endswith(("?", "？"))
    praised = len(out) > 1 and out[1].kind == "praise" and out[1].cue != "thanks"
    same = len(out) > 1 and out[1].clause.sentence == out[0].clause.sentence
    if (len(out) == 1 and asked) or (praised and same):
        out[0] = Said(out[0].clause, None, "")
    elif len(out) == 2 and out[1].cue == "thanks" and asked:
        out[0] = Said(out[0].clause, "bare", "dismissal")
    return out


def _without_topic(said: Sequence[Said], folded: str) -> list[Said]:
    """Drop cues that belong to a new subject: the rest of a sentence that opens a task, and what leads to a question.

    "I don't like my job. What should I do?" complains of the job. Short clauses, and those that point at the reply,
    keep their cue.
    """
    asked = bool(said) and said[-1].clause.asks and said[-1].kind is None
    out: list[Said] = []
    task_sentence = -1
    for one in said:
        words = folded[one.clause.start : one.clause.end]
        about_topic = asked and _left(words) >= (3 if _CJK.search(words) else 4) and not _POINTS.search(words)
        if one.kind in NEGATIVE and (one.clause.sentence == task_sentence or about_topic):
            one = Said(one.clause, None, "", one.new_task)
        if one.new_task and one.kind is None:
            task_sentence = one.clause.sentence
        out.append(one)
    return out


def _plain(folded: str) -> str:
    return folded.replace(FILL, " ").replace(BLOCK, " ")


def _bare_no(folded: str, clause: Clause) -> bool:
    return folded[clause.start : clause.end].strip() in {"no", "nope", "nah", "不", "不用", "不是"}
