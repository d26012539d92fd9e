"""Verdicts by the policy's own base weights: the logits of the verdict token right after `\\boxed{`, one forward pass.

m votes are m prompts with the same examples in other orders. A vote goes to the likeliest verdict after a bias; it
abstains where the two likeliest are closer than the margin. Bias and margin were found on labelled next states
(bench/judges.py, docs/results/judges.md). It is deterministic, so asking again would change nothing: it abstains for
good.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from stereorl.data import Feedback, NextState, Turn, Vote
from stereorl.data.signal import Reward
from stereorl.errors import ModelError
from stereorl.policy.load import Loaded
from stereorl.signals.ask import says_nothing, small_case
from stereorl.signals.examples import START, examples, orders, shots
from stereorl.signals.primed import Lock, Primed

NAME = "base"
KEPT = 4  # prompts whose cache is held; further votes read theirs anew
SPELT: dict[Reward, str] = {1: "+1", -1: "-1", 0: "0"}
# Nats added to the log-prob of each verdict. On the development table none helped: the sequence of verdicts among the
# examples keeps the three level, and contextual or batch calibration made it worse (docs/results/judges.md).
BIAS: dict[Reward, float] = {1: 0.0, -1: 0.0, 0: 0.0}


class BaseJudge:
    """Implements `signals.judge.Judge`. `lock` is held while weights are used. ModelError: a tokenizer that writes two
    verdicts with the same first token.
    """

    def __init__(
        self,
        model: Any,
        loaded: Loaded,
        lock: Lock,
        *,
        votes: int = 1,
        margin: float = 0.3,
        bias: Mapping[Reward, float] = BIAS,
    ):
        found = orders(examples("base_verdict_examples"), votes)
        self._primed = [
            Primed(model, loaded, shots("base_verdict", order), lock, keep=number < KEPT)
            for number, order in enumerate(found)
        ]
        self._margin = margin
        self._bias = dict(bias)
        self._ids = verdict_ids(self._primed[0])

    def votes(
        self, turn: Turn, next_state: NextState | None, feedback: Sequence[Feedback] = ()
    ) -> tuple[Vote, ...]:
        silent = self.quick(turn, next_state, feedback)
        if silent is not None or next_state is None:
            return silent or ()
        return tuple(
            self._vote(log_probs) if log_probs else Vote(NAME, None, "too long for the context")
            for log_probs in self.log_probs(turn, next_state)
        )

    def quick(
        self, turn: Turn, next_state: NextState | None, feedback: Sequence[Feedback] = ()
    ) -> tuple[Vote, ...] | None:
        """An abstention where there is nothing to ask the model about."""
        reason = says_nothing(next_state, feedback)
        return None if reason is None else (Vote(NAME, None, reason),)

    def log_probs(self, turn: Turn, next_state: NextState) -> list[dict[Reward, float] | None]:
        """Per vote the log-prob of each verdict token, before the bias; None where the case does not fit."""
        case = small_case(turn, next_state)
        found = [primed.next_log_probs(case, START) for primed in self._primed]
        return [
            None if logp_V is None else {value: float(logp_V[token]) for value, token in self._ids.items()}
            for logp_V in found
        ]

    def _vote(self, log_probs: Mapping[Reward, float]) -> Vote:
        return read(log_probs, self._bias, self._margin)


def read(log_probs: Mapping[Reward, float], bias: Mapping[Reward, float], margin: float) -> Vote:
    """The vote that the verdicts' log-probs cast; the reason tells by how much."""
    ranked = sorted(((log_probs[value] + bias[value], value) for value in log_probs), reverse=True)
    (best, value), (second, other) = ranked[0], ranked[1]
    lead = best - second
    if lead < margin:
        return Vote(NAME, None, f"{SPELT[value]} leads {SPELT[other]} by {lead:.2f} nats, under {margin:g}")
    return Vote(NAME, value, f"{SPELT[value]} leads {SPELT[other]} by {lead:.2f} nats")


def verdict_ids(primed: Primed) -> dict[Reward, int]:
    """The first token of each verdict."""
    ids: dict[Reward, int] = {value: primed.tokens(text)[0] for value, text in SPELT.items()}
    if len(set(ids.values())) < len(ids):
        raise ModelError(
            "This model's tokenizer begins two verdicts with the same token; set signals.judge to 'endpoint'."
        )
    return ids
