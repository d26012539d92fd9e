"""Who words the hint: the user's own sentence, or a model that was shown nothing but what the user said.

A model is asked only where the user may have corrected the reply, decides by the majority of its votes whether they
did, and each wording is held against the user's words. What it twisted is kept, refused, with the reason. The quote
stays behind the accepted wordings as their fallback. Tool output and what the user pasted never get here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from stereorl.config import SignalsConfig
from stereorl.data import Feedback, Hint, NextState, Turn, Verdict
from stereorl.signals.contradiction import contradiction
from stereorl.signals.fence import neutral
from stereorl.signals.hints import extract_hints, own_words, shorten
from stereorl.signals.text import bounded


class Hinter(Protocol):
    """From a judged turn to its hints, the best first. JudgeError: a model failed and may be asked again."""

    def hints(
        self, turn: Turn, next_state: NextState | None, feedback: Sequence[Feedback], verdict: Verdict
    ) -> tuple[Hint, ...]: ...

    def quick(
        self, turn: Turn, next_state: NextState | None, feedback: Sequence[Feedback], verdict: Verdict
    ) -> tuple[Hint, ...] | None:
        """The same where no model need be asked; else None."""
        ...


@dataclass(frozen=True, slots=True)
class Draft:
    """`votes`: is there a correction in the user's words (None: abstained); `texts`: wordings of it, any number."""

    votes: tuple[bool | None, ...]
    texts: tuple[str, ...]


class Writer(Protocol):
    """A model that words hints. `strict`: too small to be trusted with words that the user did not use."""

    name: str
    strict: bool

    def write(self, turn: Turn, next_state: NextState) -> Draft: ...


class QuoteHinter:
    """The user's own sentence (`signals.hints`). Never fails."""

    def __init__(self, config: SignalsConfig):
        self._trust = config.hint_trust
        self._max_chars = config.hint_max_chars

    def hints(
        self, turn: Turn, next_state: NextState | None, feedback: Sequence[Feedback], verdict: Verdict
    ) -> tuple[Hint, ...]:
        return extract_hints(
            next_state,
            feedback,
            trust=self._trust,
            max_chars=self._max_chars,
            reply=turn.reply,
            request=turn.messages,
        )

    quick = hints


class ModelHinter:
    """Feedback first, then up to `hint_candidates` wordings of a model, then the quotes; last what was refused."""

    def __init__(self, writer: Writer, config: SignalsConfig):
        self._writer = writer
        self._quote = QuoteHinter(config)
        self._config = config

    def hints(
        self, turn: Turn, next_state: NextState | None, feedback: Sequence[Feedback], verdict: Verdict
    ) -> tuple[Hint, ...]:
        quoted = self._quote.hints(turn, next_state, feedback, verdict)
        if next_state is None or not self._asks(next_state, verdict, quoted):
            return quoted
        return self._worded(turn, next_state, quoted)

    def quick(
        self, turn: Turn, next_state: NextState | None, feedback: Sequence[Feedback], verdict: Verdict
    ) -> tuple[Hint, ...] | None:
        quoted = self._quote.hints(turn, next_state, feedback, verdict)
        return None if next_state is not None and self._asks(next_state, verdict, quoted) else quoted

    def _worded(self, turn: Turn, next_state: NextState, quoted: Sequence[Hint]) -> tuple[Hint, ...]:
        draft = self._writer.write(turn, next_state)
        words = own_words(next_state.messages)
        worded = [*self._decided(draft)] or [*self._checked(draft.texts, words)]
        first = [hint for hint in quoted if hint.source == "feedback"]
        rest = [hint for hint in quoted if hint.source != "feedback"]
        accepted = [hint for hint in worded if hint.accepted]
        return (*first, *accepted, *rest, *(hint for hint in worded if not hint.accepted))

    def _asks(self, next_state: NextState, verdict: Verdict, quoted: Sequence[Hint]) -> bool:
        """Only where a trusted user may have corrected the reply, and no explicit correction says it better."""
        if next_state.kind != "reply" or "user" not in self._config.hint_trust:
            return False
        if any(hint.source == "feedback" and hint.accepted for hint in quoted):
            return False
        read = any(hint.source == "user" for hint in quoted)
        return (read or verdict.reward == -1) and bool(own_words(next_state.messages))

    def _decided(self, draft: Draft) -> Iterator[Hint]:
        """The refusals, when the majority sees no correction."""
        yes, no = draft.votes.count(True), draft.votes.count(False)
        if yes > no:
            return
        reason = f"{self._writer.name}: no correction in the user's words ({yes} of {len(draft.votes)} votes)"
        texts = [_clean(text, self._config.hint_max_chars) for text in draft.texts]
        for text in list(dict.fromkeys(texts))[: self._config.hint_candidates] or [""]:
            yield Hint(text, "model", False, reason)

    def _checked(self, texts: Sequence[str], words: str) -> Iterator[Hint]:
        accepted = 0
        for text in dict.fromkeys(texts):
            share = self._writer.strict
            reason = contradiction(text, words, strict=share)
            text = _clean(text, self._config.hint_max_chars)
            reason = reason or contradiction(text, words, strict=share)  # what a cut left over
            if reason is None and accepted == self._config.hint_candidates:
                return
            accepted += reason is None
            yield Hint(
                text, "model", reason is None, f"{self._writer.name}: {reason or 'worded from the user'}"
            )


def _clean(text: str, max_chars: int) -> str:
    return shorten(" ".join(neutral(bounded(text)).split()), max_chars)
