from __future__ import annotations

import numpy as np
import pytest
import torch

from stereorl.config import GateConfig
from stereorl.errors import ConfigError
from stereorl.learn.gate import Gate
from stereorl.learn.retention import Retention, fixed_prompts, load_retention
from stereorl.policy.adapters import reference
from tests.learn.tiny import log_probs, make_sample, mixed, tiny_loaded, tiny_trainer

PROMPTS = [np.arange(2, 8, dtype=np.int32), np.arange(9, 12, dtype=np.int32)]
REPLIES = [np.arange(20, 25, dtype=np.int32), np.arange(30, 38, dtype=np.int32)]


def gate(retention=None, **settings) -> Gate:
    return Gate(GateConfig(**settings), lambda: retention)


def test_an_ordinary_step_passes_with_its_measurements():
    trainer = tiny_trainer(lr=1e-3)
    update = trainer.step(mixed())
    report = gate(Retention(trainer.model, PROMPTS, REPLIES)).check(trainer, update)
    assert report.passed
    assert report.metrics["gate_kl"] > 0
    assert abs(report.metrics["retention_drop"]) < 0.1


def test_the_kl_is_the_mean_k3_after_the_step():
    trainer = tiny_trainer(lr=1e-2)
    sample = make_sample(1, reward=1.0)
    update = trainer.step([sample])
    with reference(trainer.model):
        ref = log_probs(trainer.model, sample).double()
    d = ref - log_probs(trainer.model, sample).double()
    expected = float((d.exp() - 1 - d).mean())
    assert gate().check(trainer, update).metrics["gate_kl"] == pytest.approx(expected, abs=1e-6)
    assert not gate(kl_cap=expected / 2).check(trainer, update).passed
    assert gate(kl_cap=expected * 2).check(trainer, update).passed


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weights_that_are_not_finite_are_rejected(value):
    trainer = tiny_trainer()
    update = trainer.step(mixed())
    with torch.no_grad():
        trainer.parameters[-1][0, 0] = value
    assert gate().check(trainer, update).reasons == ("a weight is not finite",)


def test_a_loss_that_is_not_finite_is_rejected():
    trainer = tiny_trainer()
    sample = make_sample(1, teacher=True)
    sample.teacher_log_probs[2] = np.nan
    update = trainer.step([sample])
    assert gate().check(trainer, update).reasons == ("the loss is nan",)


def test_forgetting_is_rejected():
    """Training against the base's own replies lowers them until the gate says so."""
    trainer = tiny_trainer(lr=1e-2, baseline="none")
    retention = Retention(trainer.model, PROMPTS, REPLIES)
    assert retention.drop() == 0.0
    from stereorl.data import Sample
    from tests.learn.tiny import make_turn

    samples = [Sample(turn=make_turn(p, r), reward=-1.0) for p, r in zip(PROMPTS, REPLIES, strict=True)]
    for _ in range(20):
        update = trainer.step(samples)
    report = gate(retention, retention_drop=0.05, kl_cap=100).check(trainer, update)
    assert report.metrics["retention_drop"] > 0.05
    assert "gate.retention_drop" in report.reasons[0]


def test_retention_is_loaded_at_the_first_check_only():
    calls = []
    lazy = Gate(GateConfig(), lambda: calls.append(1))
    trainer = tiny_trainer()
    assert calls == []
    for _ in range(2):
        lazy.check(trainer, trainer.step(mixed()))
    assert calls == [1]


def test_fixed_prompts(tmp_path):
    default = GateConfig().retention_prompts
    assert len(set(fixed_prompts(default))) == default
    assert load_retention(None, tiny_loaded(), prompts=[], cache=tmp_path) is None
    with pytest.raises(ConfigError, match="retention_prompts"):
        fixed_prompts(1000)
