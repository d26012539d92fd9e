"""The judge seam and the decision over its votes.

A judge is anything with `votes`; `RulesJudge` is the one that needs no model, `CompositeJudge` asks several in turn.
What the user says outside the conversation (feedback) is heard here, for every judge alike: an explicit score decides
alone, and a correction without a score is one vote of -1, since nobody corrects a reply that was right.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Protocol

from stereorl.data import Feedback, NextState, Turn, Verdict, Vote
from stereorl.data.signal import Reward
from stereorl.errors import JudgeError
from stereorl.signals.rules import rule_votes

FEEDBACK = "feedback"
MODELS = frozenset({"base", "endpoint"})  # the names with which models vote


class Judge(Protocol):
    """Votes on a turn. Abstains (value None) where it cannot tell; never invents a 0 for a failure of its own.

    Raises JudgeError (better, Undecided) when it failed and may be asked again.
    """

    def votes(
        self, turn: Turn, next_state: NextState | None, feedback: Sequence[Feedback] = ()
    ) -> tuple[Vote, ...]:
        """Votes from request, reply and next state. Whoever calls it adds the vote of the feedback itself."""
        ...


class Undecided(JudgeError):
    """A judge failed, or all its votes abstained where another try may not. It carries the votes."""

    def __init__(self, message: str, votes: Sequence[Vote] = ()):
        super().__init__(message)
        self.votes = tuple(votes)


class Judged(Protocol):
    """What `judge_item` needs of a queue item."""

    @property
    def turn(self) -> Turn: ...
    @property
    def next_state(self) -> NextState | None: ...
    @property
    def feedback(self) -> Sequence[Feedback]: ...


class RulesJudge:
    """The rules of `signals.rules` as a judge."""

    def votes(
        self, turn: Turn, next_state: NextState | None, feedback: Sequence[Feedback] = ()
    ) -> tuple[Vote, ...]:
        return () if next_state is None else rule_votes(turn.messages, turn.reply, next_state)


class CompositeJudge:
    """Judges in order, each asked only where all before it abstained. The abstentions stay in the record."""

    def __init__(self, judges: Sequence[Judge]):
        self._judges = tuple(judges)

    def votes(
        self, turn: Turn, next_state: NextState | None, feedback: Sequence[Feedback] = ()
    ) -> tuple[Vote, ...]:
        """Undecided, with all votes, when nobody decided and one of them may do so when asked again."""
        votes: tuple[Vote, ...] = ()
        failure: JudgeError | None = None
        for judge in self._judges:
            try:
                cast = judge.votes(turn, next_state, feedback)
            except JudgeError as error:
                cast, failure = getattr(error, "votes", ()), failure or error
            votes += cast
            if any(vote.value is not None for vote in cast):
                return votes
        if failure is not None:
            raise Undecided(str(failure), votes) from failure
        return votes

    def quick(
        self, turn: Turn, next_state: NextState | None, feedback: Sequence[Feedback] = ()
    ) -> tuple[Vote, ...] | None:
        votes: tuple[Vote, ...] = ()
        for judge in self._judges:
            cast = quick_votes(judge, turn, next_state, feedback)
            if cast is None:
                return None
            votes += cast
            if any(vote.value is not None for vote in cast):
                break
        return votes


def quick_votes(
    judge: Judge, turn: Turn, next_state: NextState | None, feedback: Sequence[Feedback] = ()
) -> tuple[Vote, ...] | None:
    """The judge's votes if it need not ask a model for them (its method `quick` says so), else None."""
    quick = getattr(judge, "quick", judge.votes)
    votes: tuple[Vote, ...] | None = quick(turn, next_state, feedback)
    return votes


def decide(votes: Sequence[Vote]) -> Verdict:
    """Strict plurality over the votes cast; a tie for the first place is 0; no vote cast, no reward (None)."""
    cast = Counter(vote.value for vote in votes if vote.value is not None)
    if not cast:
        return Verdict(None, "all abstained", tuple(votes))
    ranked = cast.most_common()
    if len(ranked) > 1 and ranked[0][1] == ranked[1][1]:
        told = ", ".join(f"{v.judge} {v.value:+d}" for v in votes if v.value is not None)
        return Verdict(0, f"tie: {told}", tuple(votes))
    winner: Reward = ranked[0][0]
    reasons = "; ".join(f"{v.judge}: {v.reason}" for v in votes if v.value == winner)
    return Verdict(winner, reasons, tuple(votes))


def judge_item(judge: Judge, item: Judged) -> Verdict:
    """The verdict on a captured turn; the newest explicit feedback score is authoritative and named in the reason.

    Raises what the judge raises, unless feedback has decided.
    """
    said = feedback_vote(item.feedback)
    try:
        votes = judge.votes(item.turn, item.next_state, item.feedback)
    except JudgeError as error:
        if said is None:
            raise
        votes = getattr(error, "votes", ())
    return verdict_of(votes, item.feedback)


def verdict_of(votes: Sequence[Vote], feedback: Sequence[Feedback]) -> Verdict:
    """The decision over a judge's votes and what explicit feedback says."""
    said = feedback_vote(feedback)
    if said is None:
        return decide(votes)
    votes = (said, *votes)
    if any(f.score is not None for f in feedback):
        return Verdict(said.value, f"{FEEDBACK}: {said.reason}", votes)
    return decide(votes)


def feedback_vote(feedback: Sequence[Feedback]) -> Vote | None:
    """The vote that explicit feedback casts: its newest score, else -1 for a correction, else none."""
    ordered = sorted(feedback, key=lambda f: f.created_at)
    scores = [f.score for f in ordered if f.score is not None]
    if scores:
        return Vote(FEEDBACK, scores[-1], f"explicit score {scores[-1]:+d}")
    if any(f.correction and f.correction.strip() for f in ordered):
        return Vote(FEEDBACK, -1, "a correction without a score")
    return None
