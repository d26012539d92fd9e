"""Every fusion with every estimator on the real model, over turns that a server recorded (recorded_turns.jsonl)."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from stereorl.choices import ESTIMATORS, FUSIONS
from stereorl.config import LearnConfig, ModelConfig, ObjectiveConfig
from stereorl.data import Message, Sample, Sampling
from stereorl.learn.checkpoint import load_checkpoint, save_checkpoint
from stereorl.learn.step import Trainer
from stereorl.policy.adapters import attach
from stereorl.policy.load import load
from stereorl.policy.render import Renderer
from stereorl.policy.score import response_log_probs
from stereorl.signals.teacher import BaseTeacher
from tests.learn.tiny import make_turn

pytestmark = pytest.mark.model
FULL_STOPS, END = (30,), 2  # ids of "." and of the end of a message
FILE = Path(__file__).with_name("recorded_turns.jsonl")


class Setting:
    def __init__(self, folder):
        loaded = load(ModelConfig())
        self.model = attach(loaded, kind="lora", r=16, alpha=32, seed=0)
        renderer = Renderer(loaded.tokenizer, loaded.context_length, loaded.eos_ids)
        self.teacher = BaseTeacher(self.model, renderer, "[user's hint / instruction]")
        self.start = folder
        save_checkpoint(Trainer(self.model, LearnConfig()), folder)
        self.train, self.held_out = self._samples("train"), self._samples("held_out")

    def _samples(self, part):
        samples = []
        for line in FILE.read_text(encoding="utf-8").splitlines():
            row = json.loads(line)
            if row["part"] != part:
                continue
            turn = make_turn(
                row["prompt_ids"],
                row["response_ids"],
                log_probs=row["log_probs"],
                messages=tuple(Message(m["role"], m["content"]) for m in row["messages"]),
                sampling=Sampling(row["temperature"]),
            )
            sample = Sample(turn=turn, reward=float(row["reward"]), hint=row["hint"])
            if row["hint"]:
                (score,) = self.teacher.score([(turn, row["hint"])])
                sample = replace(sample, teacher_log_probs=score.log_probs)
            samples.append(sample)
        return samples

    def trainer(self, *, lr=5e-4, **objective):
        trainer = Trainer(self.model, LearnConfig(lr=lr), ObjectiveConfig(**objective), teacher=self.teacher)
        load_checkpoint(trainer, self.start)
        return trainer

    @torch.no_grad()
    def log_probs(self, samples):
        turns = [sample.turn for sample in samples]
        logp_BR, _ = response_log_probs(
            self.model,
            [turn.prompt_ids for turn in turns],
            [turn.response_ids for turn in turns],
            temperature=[turn.sampling.score_temperature for turn in turns],
        )
        return [logp_BR[i, : len(turn.response_ids)].numpy() for i, turn in enumerate(turns)]


@pytest.fixture(scope="module")
def setting(tmp_path_factory):
    torch.set_num_threads(2)
    return Setting(tmp_path_factory.mktemp("start"))


@pytest.fixture(autouse=True)
def two_threads(one_thread):
    """The tiny models of the other files want one."""
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(1)


def test_the_recorded_log_probs_are_the_models_own(setting):
    for sample, logp in zip(setting.train, setting.log_probs(setting.train), strict=True):
        np.testing.assert_allclose(logp, sample.turn.log_probs, atol=1e-3)


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("fusion", FUSIONS)
def test_five_updates_stay_finite(setting, fusion, estimator):
    measured = (fusion, estimator) == (
        "advantage_sum",
        "sampled",
    )  # each term's gradient is a backward pass more
    trainer = setting.trainer(fusion=fusion, estimator=estimator, term_gradients=measured)
    other = replace(setting.train[1], hint=None, teacher_log_probs=None)
    samples = [beginning(setting.train[0])]  # both signals
    if fusion == "route":  # which distils that one
        samples.append(beginning(other))  # a reward alone
    for _ in range(5):
        metrics = trainer.step(samples).metrics
        numbers = [value for value in metrics.values() if isinstance(value, float)]
        assert np.isfinite(numbers).all(), metrics
    assert all(torch.isfinite(p).all() for p in trainer.parameters)
    assert trainer.updates == 5
    assert metrics["n_teacher"] == 1
    assert not measured or {"grad_norm_eval", "grad_norm_dir"} <= metrics.keys()


@pytest.mark.parametrize("fusion", ["advantage_sum", "route"])
def test_held_out_log_probs_move_in_the_signals_direction(setting, fusion):
    """Other sessions' replies that were too long: what the hinted teacher prefers in them becomes likelier than what
    it does not, and so does ending after the first sentence, which is what the rewards and the hints asked for.
    """
    trainer = setting.trainer(fusion=fusion, term_gradients=False)
    held_out = [sample for sample in setting.held_out if sample.has_teacher]
    ends = [first_sentence(sample) for sample in held_out]
    before, end_before = setting.log_probs(held_out), setting.log_probs(ends)
    few = setting.train[1:3] + setting.train[4:6]
    for _ in range(3):
        trainer.step(few)
    after, end_after = setting.log_probs(held_out), setting.log_probs(ends)
    gap = np.concatenate([s.teacher_log_probs - b for s, b in zip(held_out, before, strict=True)])
    moved = np.concatenate([a - b for a, b in zip(after, before, strict=True)])
    liked, disliked = moved[gap > 0.2].mean(), moved[gap < -0.2].mean()
    ending = np.mean([a[-1] - b[-1] for a, b in zip(end_after, end_before, strict=True)])
    print(
        f"{fusion}: what the teacher likes {liked:+.3f}, dislikes {disliked:+.3f}, ending {ending:+.3f} nat"
    )
    assert liked > disliked + 0.02
    assert ending > 0.2


@pytest.mark.parametrize("reward", [1.0, -1.0])
def test_a_reward_alone_moves_other_replies_to_the_same_question_its_way(setting, reward):
    """The evaluative signal on one reply, seen on the same style of reply in other sessions: too long ones."""
    trainer = setting.trainer(fusion="route", lr=2e-4, term_gradients=False)
    taught = [
        replace(s, reward=reward, hint=None, teacher_log_probs=None) for s in setting.train if s.has_teacher
    ]
    held_out = [sample for sample in setting.held_out if sample.has_teacher]
    before = np.concatenate(setting.log_probs(held_out)).mean()
    for _ in range(2):
        trainer.step(taught)
    change = np.concatenate(setting.log_probs(held_out)).mean() - before
    print(f"reward {reward:+.0f}: {change:+.4f} nat a token")
    assert change * reward > 0


def beginning(sample, n=10):
    """The first tokens of a recorded reply, as they were sampled."""
    turn = sample.turn
    cut = replace(
        turn, response_ids=turn.response_ids[:n], log_probs=turn.log_probs[:n], versions=turn.versions[:n]
    )
    teacher = sample.teacher_log_probs
    return replace(sample, turn=cut, teacher_log_probs=None if teacher is None else teacher[:n])


def first_sentence(sample):
    """The reply up to its first full stop, and then its end."""
    ids = sample.turn.response_ids
    stops = [i for i, token in enumerate(ids) if token in FULL_STOPS]
    cut = (stops[0] if stops else len(ids) // 2) + 1
    turn = replace(
        sample.turn,
        response_ids=np.array([*ids[:cut], END], np.int32),
        log_probs=np.zeros(cut + 1, np.float32),
        versions=np.zeros(cut + 1, np.int32),
    )
    return Sample(turn=turn, reward=-1.0)
