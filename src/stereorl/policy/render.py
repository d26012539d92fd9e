"""Between messages and token ids: the chat template on the way in, complete characters on the way out."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import jinja2

from stereorl.data.message import Message
from stereorl.errors import RequestError

_REPLACEMENT = "\ufffd"
_TOOLS = (
    "You may call functions. Their signatures:\n<tools>\n{tools}\n</tools>\n"
    'To call one, write: <tool_call>\n{{"name": <name>, "arguments": <object>}}\n</tool_call>'
)


class Renderer:
    """Renders with one tokenizer's chat template. Safe to share between threads that only read."""

    def __init__(
        self, tokenizer: Any, context_length: int, eos_ids: Sequence[int] | frozenset[int] | None = None
    ):
        self._tokenizer = tokenizer
        own = () if tokenizer.eos_token_id is None else (int(tokenizer.eos_token_id),)
        self.eos_ids: frozenset[int] = frozenset(own if eos_ids is None else eos_ids)
        self.context_length = context_length
        template = tokenizer.get_chat_template() if tokenizer.chat_template else ""
        if not template:
            raise RequestError("This model's tokenizer has no chat template; use an instruct model.")
        self._template_knows_tools = "tools" in template
        self._template_knows_calls = "tool_calls" in template
        special = sorted(
            set(tokenizer.all_special_tokens) | set(_added_special(tokenizer)), key=len, reverse=True
        )
        self._special = re.compile("|".join(map(re.escape, special))) if special else None

    def encode(self, messages: Sequence[Message], tools: Sequence[dict[str, Any]] = ()) -> list[int]:
        """Ids of the rendered conversation plus the generation prompt.

        Text of a message that spells a special token ("<|im_end|>") stays text: it cannot forge a message.
        Raises RequestError when the template refuses the messages (say, two user messages in a row).
        """
        if not messages:
            raise RequestError("'messages' is empty: send at least one message.", param="messages")
        shown = self._with_tools(messages, tools)
        guard = _Guard(self._special)
        dicts = [self._as_dict(message, guard) for message in shown]
        try:
            text: str = self._tokenizer.apply_chat_template(
                dicts,
                tools=list(tools) if tools and self._template_knows_tools else None,
                add_generation_prompt=True,
                tokenize=False,
            )
        except (jinja2.TemplateError, TypeError, KeyError, ValueError) as error:
            raise RequestError(
                f"The model's chat template refuses these messages: {error}", param="messages"
            ) from error
        ids: list[int] = []
        for piece, plain in guard.pieces(text):
            ids += self._tokenizer(piece, add_special_tokens=False, split_special_tokens=plain)["input_ids"]
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        """Text of `ids` without special tokens."""
        text: str = self._tokenizer.decode(
            [int(i) for i in ids], skip_special_tokens=True, clean_up_tokenization_spaces=False
        )
        return text

    def stream(self) -> TextStream:
        return TextStream(self)

    def _as_dict(self, message: Message, guard: _Guard) -> dict[str, Any]:
        data = message.as_dict()
        content = message.content
        calls = [{"name": c.name, "arguments": _parsed(c.arguments)} for c in message.tool_calls]
        if calls and self._template_knows_calls:
            data["tool_calls"] = [{"type": "function", "function": call} for call in calls]
        elif calls:
            data.pop("tool_calls")
            lines = [f"<tool_call>\n{json.dumps(call, ensure_ascii=False)}\n</tool_call>" for call in calls]
            content = "\n".join([*([content] if content else []), *lines])
        data["content"] = guard.protect(content)
        return data

    def _with_tools(self, messages: Sequence[Message], tools: Sequence[dict[str, Any]]) -> Sequence[Message]:
        """Tools go into the system message where the template has no place for them."""
        if not tools or self._template_knows_tools:
            return messages
        text = _TOOLS.format(tools="\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools))
        if messages[0].role == "system":
            first = messages[0]
            return (replace(first, content=f"{first.content}\n\n{text}"), *messages[1:])
        return (Message("system", text), *messages)


class TextStream:
    """Turns ids into text, one at a time. All pushes and the flush together equal `decode` of all ids.

    A character whose bytes are spread over several tokens appears once it is complete. Each new piece is
    decoded together with the one before it, because some tokenizers drop a space at the start of what they
    decode.
    """

    def __init__(self, renderer: Renderer):
        self._decode = renderer.decode
        self._ids: list[int] = []
        self._known = 0  # ids of the window whose text is out already
        self._known_text = ""

    def push(self, token_id: int) -> str:
        """The text that this id completes; often one word, sometimes ""."""
        self._ids.append(token_id)
        text = self._decode(self._ids)
        return "" if text.endswith(_REPLACEMENT) else self._emit(text)

    def flush(self) -> str:
        """What was held back because it never became complete."""
        return self._emit(self._decode(self._ids)) if self._known < len(self._ids) else ""

    def _emit(self, text: str) -> str:
        new = text[len(self._known_text) :]
        if new:
            self._ids = self._ids[self._known :]
            self._known_text = self._decode(self._ids)
        else:
            self._known_text = text
        self._known = len(self._ids)
        return new


class _Guard:
    """Marks special-token text inside contents and gives it back, as plain text, after rendering."""

    def __init__(self, special: re.Pattern[str] | None):
        self._special = special
        self._found: list[str] = []

    def protect(self, content: str) -> str:
        content = content.replace("\ue000", _REPLACEMENT)  # the mark itself cannot be forged either
        if self._special is None:
            return content
        return self._special.sub(self._mark, content)

    def _mark(self, match: re.Match[str]) -> str:
        self._found.append(match.group())
        return f"\ue000{len(self._found) - 1}\ue000"

    def pieces(self, text: str) -> list[tuple[str, bool]]:
        """(text, is plain): plain pieces must not be read as special tokens."""
        if not self._found:
            return [(text, False)]
        parts = text.split("\ue000")
        out = [(self._found[int(p)], True) if i % 2 else (p, False) for i, p in enumerate(parts)]
        return [(piece, plain) for piece, plain in out if piece]


def with_hint(messages: Sequence[Message], hint: str, label: str) -> tuple[Message, ...]:
    """`messages` with the labelled hint at the end of the last user message (else of the last)."""
    if not messages:
        raise RequestError("A hint needs at least one message.", param="messages")
    users = [i for i, message in enumerate(messages) if message.role == "user"]
    at = users[-1] if users else len(messages) - 1
    changed = replace(messages[at], content=f"{messages[at].content}\n\n{label}\n{hint}")
    return (*messages[:at], changed, *messages[at + 1 :])


def _parsed(arguments: str) -> Any:
    """The arguments as the template shows them; text that is no JSON, or nested beyond reason, stays text."""
    try:
        return json.loads(arguments)
    except (ValueError, RecursionError):
        return arguments


def _added_special(tokenizer: Any) -> list[str]:
    return [str(token.content) for token in tokenizer.added_tokens_decoder.values() if token.special]
