"""What a scripted user wants, how it sees whether a reply gives it, and what it says about that.

A persona's rule is decidable from the reply alone, so that the same rule judges the held-out replies. The complaints
are ordinary sentences of varied wording; nothing in them is a code word for the judge. `brief` is the vetted persona.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from stereorl.errors import ConfigError

Check = Callable[[str, str], bool]


@dataclass(frozen=True)
class Persona:
    """`check(text, finish_reason)` is the preference; `instruction` puts it into one sentence for scoring."""

    name: str
    wants: str
    check: Check
    complaints: tuple[str, ...]
    thanks: tuple[str, ...]
    instruction: str


def words(text: str) -> int:
    """Words as a reader counts them: runs of characters between white space."""
    return len(text.split())


def is_brief(text: str, finish_reason: str, *, most: int = 25) -> bool:
    """A reply that ended by itself, says something, and has at most `most` words."""
    return finish_reason == "stop" and 0 < words(text) <= most


def is_plain(text: str, finish_reason: str) -> bool:
    """No list, heading, bold, or code mark anywhere, and not empty."""
    return bool(text.strip()) and _MARKUP.search(text) is None


def is_paragraph(text: str, finish_reason: str) -> bool:
    """One paragraph: something, without a line break inside."""
    return bool(text.strip()) and "\n" not in text.strip()


_MARKUP = re.compile(r"^\s*(?:[-*+•]|\d+[.)]|#+)\s|\*\*|__|`", re.MULTILINE)

_THANKS = (
    "Thanks, that's exactly what I needed.",
    "Perfect, thank you!",
    "Great answer, thanks.",
    "Thank you, that is just right.",
    "That's perfect, thanks a lot.",
)

PERSONAS: dict[str, Persona] = {
    persona.name: persona
    for persona in (
        Persona(
            name="brief",
            wants="a finished answer of at most 25 words",
            check=is_brief,
            complaints=(
                "That's too long. Please answer in one short sentence.",
                "Too long. Please give me just one short sentence.",
                "No, that is too much text. Answer in a single short sentence.",
                "I asked for something brief: please reply in one short sentence.",
                "That is far too long for me. Use one short sentence instead.",
                "Please be shorter. Answer in one short sentence.",
            ),
            thanks=_THANKS,
            instruction="Please answer in one short sentence.",
        ),
        Persona(
            name="plain",
            wants="running text without lists, headings or bold",
            check=is_plain,
            complaints=(
                "That's not what I wanted. Please answer in plain sentences.",
                "No, please answer in plain running text instead.",
                "Wrong format. Please answer in ordinary sentences only.",
                "I can't read that here. Please use plain sentences instead.",
            ),
            thanks=_THANKS,
            instruction="Please answer in plain sentences.",
        ),
        Persona(
            name="paragraph",
            wants="everything in one paragraph",
            check=is_paragraph,
            complaints=(
                "That's not right. Please put it all in a single paragraph.",
                "No, please write it as one single paragraph.",
                "Wrong layout. Please answer in one paragraph.",
                "Please write that again in a single paragraph.",
            ),
            thanks=_THANKS,
            instruction="Please answer in a single paragraph.",
        ),
    )
}


def persona_named(name: str) -> Persona:
    try:
        return PERSONAS[name]
    except KeyError:
        raise ConfigError(f"No persona '{name}'. There are: {', '.join(PERSONAS)}.") from None
