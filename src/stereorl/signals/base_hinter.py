"""Hints by the policy's own base weights: decision from the logits after `\\boxed{`, the text written after `+1}`.

It is shown the user's words alone: with request and reply beside them it copied from those. A model of this size is as
likely to turn a correction round as to word it: whatever it writes is held against the user's words and must be about
something that they named (`signals.contradiction`).
"""

from __future__ import annotations

import zlib
from typing import Any

from stereorl.data import NextState, Turn
from stereorl.data.signal import Reward
from stereorl.policy.load import Loaded
from stereorl.signals.ask import small_words
from stereorl.signals.base_judge import KEPT, NAME, verdict_ids
from stereorl.signals.examples import START, examples, orders, shots
from stereorl.signals.hinter import Draft
from stereorl.signals.primed import Lock, Primed

TEMPERATURE = 0.6
TOKENS = 48


class BaseWriter:
    """Implements `signals.hinter.Writer`. The first text is greedy, the others drawn; the same turn, the same texts."""

    name = NAME
    strict = True

    def __init__(self, model: Any, loaded: Loaded, lock: Lock, *, votes: int = 1, texts: int = 3):
        found = orders(examples("base_hint_examples"), votes)
        self._primed = [
            Primed(model, loaded, shots("base_hint", order), lock, keep=number < KEPT)
            for number, order in enumerate(found)
        ]
        self._texts = texts
        self._ids: dict[Reward, int] = verdict_ids(self._primed[0])

    def write(self, turn: Turn, next_state: NextState) -> Draft:
        case = small_words(next_state)
        found = [primed.next_log_probs(case, START, room=TOKENS) for primed in self._primed]
        votes = tuple(
            None if logp_V is None else bool(logp_V[self._ids[1]] > logp_V[self._ids[-1]]) for logp_V in found
        )
        if votes.count(True) <= votes.count(False):
            return Draft(votes, ())
        texts = self._primed[0].write(
            case,
            f"{START}+1}}",
            texts=self._texts,
            tokens=TOKENS,
            temperature=TEMPERATURE,
            seed=zlib.crc32(turn.turn_id.encode()),
        )
        return Draft(votes, tuple(text for text in texts if text))
