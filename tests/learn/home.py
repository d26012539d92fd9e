"""A home folder with a real store, real versions and a learner on the tiny model; judge and teacher are scripted."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from stereorl.config import Config
from stereorl.data import Message, NextState, Vote
from stereorl.learn.loop import Learner
from stereorl.policy.engine import Scores
from stereorl.signals.teacher import HINT_OVER_CONTEXT
from stereorl.store.records import NewSession, SessionEvent
from stereorl.store.store import Store
from stereorl.store.versions import Versions
from tests.learn.tiny import VOCABULARY, make_turn, tiny_loaded

_numbers = itertools.count()


class WordJudge:
    """Good +1, bad -1, anything else an abstention."""

    def votes(self, turn, next_state, feedback=()):
        word = next_state.messages[-1].content if next_state else ""
        return (Vote("words", {"good": 1, "bad": -1}.get(word.split()[0] if word else ""), word),)


class FlatTeacher:
    """The same log-prob everywhere, ids 0 to K - 1 the likeliest. One that moves is asked again at the step."""

    def __init__(self, name="base", value=-1.0):
        self.name, self.value, self.asked, self.refuses, self.failure = name, value, 0, set(), None
        self.moves = name in ("live", "ema")
        self.followed = 0

    def score(self, pairs, *, top_k=0):
        if self.failure is not None:
            raise self.failure
        self.asked += len(pairs)
        return [
            HINT_OVER_CONTEXT if hint in self.refuses else self._scores(len(turn.response_ids), top_k)
            for turn, hint in pairs
        ]

    def _scores(self, n, top_k):
        own = np.full(n, self.value, np.float32)
        if not top_k:
            return Scores(own)
        top = np.tile(np.arange(top_k, dtype=np.int32), (n, 1))
        return Scores(own, top, np.full((n, top_k), self.value, np.float32))

    def follow(self):
        self.followed += 1

    def state_dict(self):
        return {}

    def load_state_dict(self, state):
        pass


@dataclass
class Home:
    """Everything a learner needs in one folder; `learner()` starts a new one, as after a crash."""

    path: Path
    settings: dict
    teacher: FlatTeacher

    def __post_init__(self):
        self.config = Config.model_validate(
            {
                "home": self.path,
                "learn": {
                    "lora_r": 4,
                    "lora_alpha": 8,
                    "lr": 1e-2,
                    "batch_size": 4,
                    "max_wait_s": 1e6,
                    **self.settings,
                },
                "gate": {"retention_prompts": 0},
            }
        )
        self.path.mkdir(parents=True, exist_ok=True)
        self.store = Store.open(self.config.store_url)
        self.versions = Versions(self.config.versions_path)

    def learner(self, **gate) -> Learner:
        config = self.config.model_copy(update={"gate": self.config.gate.model_copy(update=gate)})
        return Learner(
            config,
            store=self.store,
            versions=self.versions,
            loaded=tiny_loaded(),
            judge=WordJudge(),
            teacher=self.teacher,
        )

    def talk(self, *next_states, version=0, seed=None, **given):
        """One session a next state: a turn, and what the user wrote then (None: nothing yet)."""
        ids = []
        for text in next_states:
            n = next(_numbers)
            rng = np.random.default_rng(n if seed is None else seed)
            turn = make_turn(
                rng.integers(2, VOCABULARY, 6),
                rng.integers(2, VOCABULARY, 5),
                version=version,
                turn_id=f"turn{n:06d}",
                session_id=f"s{n}",
                **given,
            )
            records = [NewSession(f"s{n}", 1.0, "new"), turn]
            if text is not None:
                records.append(NextState(turn.turn_id, "reply", (Message("user", text),), 2.0))
            self.store.put(records)
            ids.append(turn.turn_id)
        return ids

    def close(self, turn_id):
        session_id = self.store.turn(turn_id).session_id
        self.store.put([SessionEvent(session_id, "closed", "done", 3.0)])

    def drain(self, learner, rounds=50):
        """Tick until there is nothing to do; returns the number of busy rounds."""
        for n in range(rounds):
            if not learner.tick():
                return n
        raise AssertionError(f"still busy after {rounds} rounds")


def make_home(path, *, teacher=None, **settings) -> Home:
    return Home(path, settings, teacher or FlatTeacher())


def tensors(learner) -> list[torch.Tensor]:
    """Weights and optimiser moments, for bit-exact comparison."""
    trainer = learner.parts.trainer
    out = [p.detach().clone() for p in trainer.parameters]
    for state in trainer.optimizer.state_dict()["state"].values():
        out += [value.clone() for value in state.values() if isinstance(value, torch.Tensor)]
    return out


def equal(left, right) -> bool:
    return len(left) == len(right) and all(torch.equal(a, b) for a, b in zip(left, right, strict=True))
