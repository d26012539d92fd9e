"""Hints by the policy's own base weights: the decision is the base judge's, the text follows `\\boxed{+1}`.

The judge's prompt decides whether the user wants the reply changed, because the writer's own verdict token does not
tell (docs/results/judges.md). The writer is shown the user's words alone: with request and reply beside them it copied
from those. A model of this size is as likely to turn a correction round as to word it: whatever it writes is held
against the user's words and must be about something that they named (`signals.contradiction`).
"""

from __future__ import annotations

import zlib
from typing import Any

from stereorl.data import NextState, Turn
from stereorl.policy.load import Loaded
from stereorl.signals.ask import small_words
from stereorl.signals.base_judge import NAME, BaseJudge
from stereorl.signals.examples import START, examples, shots
from stereorl.signals.hinter import Draft
from stereorl.signals.primed import Lock, Primed

TEMPERATURE = 0.6
TOKENS = 48


class BaseWriter:
    """Implements `signals.hinter.Writer`. The first text is greedy, the others drawn; the same turn, the same texts."""

    name = NAME
    strict = True

    def __init__(self, model: Any, loaded: Loaded, lock: Lock, *, votes: int = 1, texts: int = 3):
        self._judge = BaseJudge(model, loaded, lock, votes=votes)
        self._primed = Primed(model, loaded, shots("base_hint", examples("base_hint_examples")), lock)
        self._texts = texts

    def write(self, turn: Turn, next_state: NextState) -> Draft:
        judged = self._judge.log_probs(turn, next_state)
        votes = tuple(None if found is None else found[-1] > found[1] for found in judged)
        if votes.count(True) <= votes.count(False):
            return Draft(votes, ())
        texts = self._primed.write(
            small_words(next_state),
            f"{START}+1}}",
            texts=self._texts,
            tokens=TOKENS,
            temperature=TEMPERATURE,
            seed=zlib.crc32(turn.turn_id.encode()),
        )
        return Draft(votes, tuple(text for text in texts if text))
