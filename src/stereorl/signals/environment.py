"""What an environment's output says about the reply that caused it: exit status, test summary, errors, success.

Order of trust: a JSON envelope, an exit status where harnesses put it, the last test summary, error lines, words of
success; output without any sign of failure is a clean result and counts as progress. What a reading tool brings back
(a file, a web page) is someone else's text: only the envelope around it is looked at.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from stereorl.data import Message, NextState
from stereorl.data.signal import Reward
from stereorl.signals import cues_tools
from stereorl.signals.cues import compiled
from stereorl.signals.text import blocks, bounded
from stereorl.signals.user_words import is_output

HEAD, TAIL = 8000, 8000
SHORT = 400  # a reading tool's whole answer may be an error message when it is this short
_EDGE_LINES = 3
_MARKUP = re.compile(r"^[ \t]{0,3}(?:```|~~~)\w{0,20}[ \t]*$|^[ \t]{0,3}> ?", re.M)
_RAN = re.compile(
    r"\b(?:ran|run|running|executed|tried|got|get|getting|gives?|gave|says?|said|prints?|printed|output|outputs|fails?|"
    r"failed|crash\w*|throws?|error|exception|result|results|returned|passe[sd]|works?)\b|运行|执行|报错|输出|结果|错误|跑",
    re.I,
)


class Outcome(NamedTuple):
    """`value` None: says nothing. `line` is the output's line that decided, for a hint from a trusted tool."""

    value: Reward | None
    reason: str
    line: str = ""


def read_environment(reply: Message, next_state: NextState) -> Outcome:
    """One outcome of all tool messages and of the command output that user messages carry.

    One failed call makes the step fail; otherwise one success or clean result makes it good.
    """
    found = [*_of_tools(reply, next_state.messages), *_of_users(reply, next_state.messages)]
    for value in (-1, 1):
        for outcome in found:
            if outcome.value == value:
                return outcome
    return found[0] if found else Outcome(None, "no environment output")


def judge_output(content: str, *, reader: bool = False, clean_counts: bool = True) -> Outcome:
    """Judge one output. `clean_counts`: text without any sign of failure is +1 (a tool's answer) or nothing."""
    text = bounded(content, head=HEAD, tail=TAIL).strip()
    if not text or compiled(cues_tools.EMPTY_RESULTS).match(text.lower()):
        return Outcome(None, "empty result")
    envelope = _of_json(content if len(content) <= HEAD + TAIL else "", depth=0)
    if envelope is not None and (envelope.value is not None or envelope.reason == "empty result"):
        return envelope
    lines = [line for line in _MARKUP.sub("", text).split("\n") if line.strip()]
    status, leads = _exit_status(lines)
    if status not in (None, 0):
        return Outcome(-1, f"exit status {status}", _first_failure(lines) or f"exit status {status}")
    if reader:
        shown = _failure(
            lines[:1] if len(text) > SHORT else lines[:4], (*cues_tools.HARD_FAILURES, *cues_tools.FAILURES)
        )
        if status is None and shown and not shown.reason.startswith("exception"):
            return shown
    else:
        decided = _of_lines(lines, passed=status == 0, trusted=leads)
        if decided:
            return decided
    if status == 0:
        return Outcome(1, "exit status 0")
    for line in lines[:50]:
        for name, pattern in cues_tools.SUCCESSES:
            if not reader and compiled(pattern).search(line):
                return Outcome(1, name)
    return Outcome(1, "clean result") if clean_counts else Outcome(None, "no sign of success or failure")


def _of_lines(lines: Sequence[str], *, passed: bool, trusted: bool) -> Outcome | None:
    """Test summaries and error lines. `trusted`: the exit status leads; output can forge a last line, not the first."""
    tests = _summary(lines)
    failed = tests if tests and tests.value == -1 else _failure(lines, cues_tools.HARD_FAILURES)
    if failed or (passed and trusted):
        return failed or tests
    doubt = _failure(lines, cues_tools.FAILURES)
    if doubt and (passed or tests):
        return Outcome(None, f"signs of success, but also: {doubt.reason}")
    return doubt or tests


def _of_tools(reply: Message, messages: Sequence[Message]) -> list[Outcome]:
    calls = {call.id: call for call in reply.tool_calls}
    found = []
    for message in messages:
        if message.role == "tool":
            call = calls.get(message.tool_call_id or "")
            name = message.name or (call.name if call else "")
            found.append(
                judge_output(message.content, reader=_is_reader(name, call.arguments if call else ""))
            )
    return found


def _is_reader(name: str, arguments: str) -> bool:
    parts = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name[:100]).lower()
    if compiled(cues_tools.READERS).search(parts):
        return True
    try:
        command = json.loads(arguments[:4000] or "{}")
    except (ValueError, RecursionError):
        return False
    words = command.get("command") or command.get("cmd") if isinstance(command, dict) else None
    return isinstance(words, str) and bool(compiled(cues_tools.READER_COMMANDS).match(words[:200]))


def _of_users(reply: Message, messages: Sequence[Message]) -> list[Outcome]:
    found = []
    for message in messages:
        if message.role != "user":
            continue
        if is_output(message.content):
            found.append(judge_output(message.content))
            continue
        text = bounded(message.content)
        spans = blocks(text)
        words = "".join(
            text[a:b]
            for a, b in zip([0, *(e for _, e in spans)], [*(s for s, _ in spans), len(text)], strict=True)
        )
        # Pasted output is the reply's doing when the reply had something to run, or the user says they ran it.
        if spans and ("```" in reply.content or reply.tool_calls or _RAN.search(words)):
            found += [judge_output(text[a:b], clean_counts=False) for a, b in spans]
    return found


def _exit_status(lines: Sequence[str]) -> tuple[int | None, bool]:
    """The exit status and whether it stands in the first line. Of several, the worst counts."""
    found = []
    for line in {*lines[:_EDGE_LINES], *lines[-_EDGE_LINES:]}:
        for pattern in cues_tools.EXIT_STATUS:
            match = re.search(pattern, line.strip(), re.I)
            if match:
                found.append((int(match.group(1)), line == lines[0]))
    return max(found, key=lambda f: (f[0] != 0, f[1])) if found else (None, False)


def _summary(lines: Sequence[str]) -> Outcome | None:
    """The last summary line counts; beside one that passed, a failing line of the same runner still fails."""
    passed: Outcome | None = None
    for line in reversed(lines):
        for summary in cues_tools.SUMMARIES:
            if not compiled(summary.line).search(line):
                continue
            hits = list(compiled(summary.failed).finditer(line))
            if any(not m.groups() or int(m.group(1)[:9]) > 0 for m in hits):
                return Outcome(-1, f"tests failed ({summary.name})", line.strip())
            if compiled(summary.passed).search(line):
                passed = passed or Outcome(1, f"tests passed ({summary.name})")
    return passed


def _failure(lines: Iterable[str], patterns: Sequence[cues_tools.Pattern]) -> Outcome | None:
    kept = list(lines)
    for index, line in enumerate(kept):
        for name, pattern in patterns:
            if compiled(pattern).search(line):
                told = _exception_of(kept[index:]) if name == "traceback" else line
                return Outcome(-1, name, told.strip())
    return None


def _first_failure(lines: Sequence[str]) -> str:
    found = _failure(lines, cues_tools.HARD_FAILURES) or _failure(lines, cues_tools.FAILURES)
    return found.line if found else ""


def _exception_of(lines: Sequence[str]) -> str:
    """The exception line of a traceback: the first line after it that is not indented."""
    return next((line for line in lines[1:] if not line.startswith((" ", "\t"))), lines[0])


def _of_json(content: str, depth: int) -> Outcome | None:
    """An outcome when `content` is a JSON object (or empty); None when it is not JSON."""
    text = content.strip()
    if not text.startswith(("{", "[")):
        return None
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not value:
        return Outcome(None, "empty result")
    return (
        _of_object({str(k).lower(): v for k, v in value.items()}, depth) if isinstance(value, dict) else None
    )


def _of_object(fields: dict[str, Any], depth: int) -> Outcome:
    for key in cues_tools.JSON_EXIT_KEYS:
        status = fields.get(key)
        if isinstance(status, int) and not isinstance(status, bool):
            inner = _inner(fields, depth) if status == 0 else None
            if inner is not None and inner.reason.startswith("tests"):
                return inner
            return (
                Outcome(1, "exit status 0")
                if status == 0
                else Outcome(-1, f"exit status {status}", _message(fields) or f"exit status {status}")
            )
    if any(_is_error(fields.get(key)) for key in cues_tools.JSON_ERROR_KEYS) or any(
        fields.get(key) is True for key in cues_tools.JSON_ERROR_FLAGS
    ):
        return Outcome(-1, "error in the result", _message(fields) or "the call returned an error")
    for key in cues_tools.JSON_OK_KEYS:
        if isinstance(fields.get(key), bool):
            good = fields[key]
            return (
                Outcome(1, f"{key}: true")
                if good
                else Outcome(-1, f"{key}: false", _message(fields) or f"{key}: false")
            )
    for key in cues_tools.JSON_STATUS_KEYS:
        outcome = _status(key, fields.get(key), fields)
        if outcome:
            return outcome
    inner = _inner(fields, depth)
    return inner if inner is not None and inner.value == -1 else Outcome(None, "no status in the result")


def _status(key: str, value: Any, fields: dict[str, Any]) -> Outcome | None:
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) == 3:
        value = int(value)
    if isinstance(value, int) and not isinstance(value, bool) and key not in ("result", "type"):
        if 400 <= value < 600:
            return Outcome(-1, f"HTTP status {value}", _message(fields) or f"status {value}")
        return Outcome(1, f"HTTP status {value}") if 200 <= value < 300 else None
    if isinstance(value, str) and value.lower() in cues_tools.JSON_STATUS_BAD:
        return Outcome(-1, f"{key}: {value}", _message(fields) or f"{key}: {value}")
    if isinstance(value, str) and value.lower() in cues_tools.JSON_STATUS_GOOD and key != "type":
        return Outcome(1, f"{key}: {value}")
    return None


def _is_error(value: Any) -> bool:
    if isinstance(value, str):
        return value.strip().lower() not in ("", "none", "null", "false", "0", "no error", "ok")
    return bool(value)


def _inner(fields: dict[str, Any], depth: int) -> Outcome | None:
    """The outcome of the text that an envelope without a status of its own carries."""
    if depth >= 2:
        return None
    for key in cues_tools.JSON_TEXT_KEYS:
        text = fields.get(key)
        if isinstance(text, str) and text.strip():
            lines = [line for line in bounded(text, head=HEAD, tail=TAIL).split("\n") if line.strip()]
            found = _of_json(text, depth + 1) or _summary(lines) or _failure(lines[:1], cues_tools.FAILURES)
            if found is not None and found.value is not None:
                return found
    return None


def _message(fields: dict[str, Any]) -> str:
    for key in (*cues_tools.JSON_ERROR_KEYS, "message", "stderr", "reason", "detail", "msg"):
        value = fields.get(key)
        if isinstance(value, dict):
            value = value.get("message") or value.get("detail")
        if isinstance(value, str) and value.strip():
            return bounded(value).strip().split("\n")[-1].strip()
    return ""
