"""The step and the gate on the embedded language model."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from stereorl.config import GateConfig, LearnConfig, ModelConfig
from stereorl.data import Message, Sample, Sampling
from stereorl.learn.checkpoint import load_checkpoint, save_checkpoint
from stereorl.learn.gate import Gate
from stereorl.learn.retention import fixed_prompts, load_retention
from stereorl.learn.step import Trainer
from stereorl.policy.adapters import attach
from stereorl.policy.load import load
from stereorl.policy.render import Renderer
from stereorl.policy.score import response_log_probs
from stereorl.signals.teacher import BaseTeacher
from tests.learn.tiny import make_turn

pytestmark = pytest.mark.model
HINT = "That is too long. Please answer in one short sentence."
QUESTIONS = {
    "Why is the sky blue?": "The sky is blue because air scatters blue light more than red light.",
    "What is a glacier?": "A glacier is a large mass of ice that moves slowly over land. It forms where snow gathers.",
}


@pytest.fixture(scope="module")
def base():
    torch.set_num_threads(1)
    return load(ModelConfig())


@pytest.fixture(scope="module")
def model(base):
    return attach(base, kind="lora", r=16, alpha=32, seed=0)


@pytest.fixture
def trainer(model, tmp_path_factory):
    """A fresh trainer over the shared model, whose adapter is put back afterwards."""
    trainer = Trainer(model, LearnConfig(lr=1e-4))
    start = tmp_path_factory.mktemp("start")
    save_checkpoint(trainer, start)
    yield trainer
    load_checkpoint(trainer, start)


@pytest.fixture(scope="module")
def renderer(base):
    return Renderer(base.tokenizer, base.context_length, base.eos_ids)


@pytest.fixture
def samples(trainer, base, renderer):
    """The two replies as on-policy turns without a signal yet; only `reward` is a placeholder."""
    out = []
    for question, answer in QUESTIONS.items():
        messages = (Message("user", question),)
        response = [*base.tokenizer(answer)["input_ids"], base.tokenizer.eos_token_id]
        turn = make_turn(renderer.encode(messages), response, messages=messages, sampling=Sampling(0.7))
        out.append(Sample(turn=replace(turn, log_probs=score(trainer, turn)), reward=1.0))
    return out


@torch.no_grad()
def score(trainer, turn):
    logp, _ = response_log_probs(trainer.model, [turn.prompt_ids], [turn.response_ids], temperature=0.7)
    return logp[0].numpy()


@pytest.mark.parametrize("reward", [1.0, -1.0])
def test_a_reward_moves_the_reply_its_way(trainer, samples, reward):
    sample = replace(samples[0], reward=reward)
    trainer.step([sample])
    change = float((score(trainer, sample.turn) - sample.turn.log_probs).sum())
    assert change * reward > 0.1


def test_a_hint_raises_what_the_teacher_prefers(trainer, samples, renderer):
    turns = [sample.turn for sample in samples]
    given = BaseTeacher(trainer.model, renderer, "[hint]").score([(turn, HINT) for turn in turns])
    scores = [score.log_probs for score in given]
    taught = [Sample(turn=t, hint=HINT, teacher_log_probs=s) for t, s in zip(turns, scores, strict=True)]
    update = trainer.step(taught)
    assert update.metrics["n_reward"] == 0
    gap = np.concatenate([s - t.log_probs for s, t in zip(scores, turns, strict=True)])
    change = np.concatenate([score(trainer, t) - t.log_probs for t in turns])
    assert change[gap > 0.1].mean() > change[gap < -0.1].mean() + 0.01


def test_lr_zero_changes_nothing_and_without_a_hint_the_gap_is_zero(model, samples, renderer):
    trainer = Trainer(model, LearnConfig(lr=0.0, epochs=2))
    before = [p.detach().clone() for p in trainer.parameters]
    same = BaseTeacher(model, renderer, "[hint]").score([(s.turn, "") for s in samples])
    taught = [replace(s, hint="", teacher_log_probs=t.log_probs) for s, t in zip(samples, same, strict=True)]
    metrics = trainer.step(taught).metrics
    assert metrics["ratio_mean"] == 1.0
    assert metrics["gap_max"] < 1e-4
    assert metrics["importance_max"] == pytest.approx(1.0, abs=1e-4)
    assert metrics["kl"] < 1e-6
    assert all(torch.equal(a, b) for a, b in zip(before, trainer.parameters, strict=True))


def test_micro_batches_agree_on_the_real_model(model, samples):
    norms = []
    for micro_tokens in (1, 4096):
        trainer = Trainer(model, LearnConfig(lr=0.0, micro_tokens=micro_tokens))
        norms.append(trainer.step(samples).metrics["grad_norm"])
    assert norms[0] == pytest.approx(norms[1], rel=1e-4)


def test_the_gate_measures_retention_and_keeps_the_replies(trainer, base, samples, tmp_path):
    def load_again():
        return load_retention(trainer.model, base, prompts=fixed_prompts(3), cache=tmp_path)

    gate = Gate(GateConfig(), load_again)
    report = gate.check(trainer, trainer.step(samples))
    assert report.passed
    assert abs(report.metrics["retention_drop"]) < 0.2
    (file,) = tmp_path.glob("retention-*.json")
    written = file.stat().st_mtime_ns
    assert -3 < load_again().base < 0
    assert file.stat().st_mtime_ns == written  # generated once
