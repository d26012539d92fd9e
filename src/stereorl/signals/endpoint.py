"""Verdicts and hints by a chat model: m independent answers to one prompt, asked side by side, read strictly."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from stereorl.data import Feedback, Message, NextState, Turn, Vote
from stereorl.errors import JudgeError
from stereorl.signals import answer
from stereorl.signals.ask import messages, says_nothing
from stereorl.signals.chat import Chat
from stereorl.signals.fence import nonce
from stereorl.signals.hinter import Draft
from stereorl.signals.judge import Undecided

NAME = "endpoint"
AT_ONCE = 8


class EndpointJudge:
    """Implements `signals.judge.Judge`. An answer without a verdict, and a call that failed, abstain by name."""

    def __init__(self, chat: Chat, *, votes: int = 1, nonce: Callable[[], str] = nonce):
        self._chat = chat
        self._votes = votes
        self._nonce = nonce

    def votes(
        self, turn: Turn, next_state: NextState | None, feedback: Sequence[Feedback] = ()
    ) -> tuple[Vote, ...]:
        """m votes. Raises Undecided, which carries them, when none of them says anything."""
        silent = self.quick(turn, next_state, feedback)
        if silent is not None or next_state is None:
            return silent or ()
        asked = messages("verdict", turn, next_state, nonce=self._nonce())
        votes = tuple(map(_vote, ask(self._chat, asked, self._votes)))
        if all(vote.value is None for vote in votes):
            raise Undecided(f"No verdict from the judge's endpoint: {votes[0].reason}", votes)
        return votes

    def quick(
        self, turn: Turn, next_state: NextState | None, feedback: Sequence[Feedback] = ()
    ) -> tuple[Vote, ...] | None:
        """An abstention where there is nothing to ask the model about."""
        reason = says_nothing(next_state, feedback)
        return None if reason is None else (Vote(NAME, None, reason),)


class EndpointWriter:
    """Implements `signals.hinter.Writer`: m answers, each with a decision and perhaps a hint."""

    name = NAME
    strict = False

    def __init__(self, chat: Chat, *, votes: int = 3, nonce: Callable[[], str] = nonce):
        self._chat = chat
        self._votes = votes
        self._nonce = nonce

    def write(self, turn: Turn, next_state: NextState) -> Draft:
        """Raises JudgeError when no answer holds a decision."""
        asked = messages("hint", turn, next_state, nonce=self._nonce())
        answers = ask(self._chat, asked, self._votes)
        given = [a for a in answers if isinstance(a, str)]
        decisions = tuple(_decision(a) for a in given)
        if all(decision is None for decision in decisions):
            failed = next((str(a) for a in answers if not isinstance(a, str)), "no answer holds a decision")
            raise JudgeError(f"No decision from the hint writer's endpoint: {failed}")
        texts = tuple(answer.hint(a) for a, yes in zip(given, decisions, strict=True) if yes)
        return Draft(decisions, texts)


def ask(chat: Chat, asked: Sequence[Message], times: int) -> list[str | JudgeError]:
    """`times` answers to the same messages; a call that failed leaves its error in place of one."""

    def one(_: int) -> str | JudgeError:
        try:
            return chat.complete(asked)
        except JudgeError as error:
            return error

    if times == 1:
        return [one(0)]
    with ThreadPoolExecutor(min(times, AT_ONCE), thread_name_prefix="judge") as pool:
        return list(pool.map(one, range(times)))


def _vote(found: str | JudgeError) -> Vote:
    if isinstance(found, JudgeError):
        return Vote(NAME, None, f"failed: {found}"[: answer.MAX_REASON])
    value = answer.boxed(found)
    reason = answer.rationale(found)
    return Vote(NAME, value, reason if value is not None else f"unparsable: {reason}"[: answer.MAX_REASON])


def _decision(found: str) -> bool | None:
    value = answer.boxed(found)
    return None if value in (None, 0) else value == 1
