"""Which teacher a configuration makes, what is recorded of it, and that it is told of each step."""

from __future__ import annotations

import pytest
import torch

from stereorl.config import Config
from stereorl.core import Needs
from stereorl.errors import ConfigError
from stereorl.learn.parts import assemble, recorded_top_k
from stereorl.signals.remote import RemoteTeacher
from stereorl.signals.teacher import BaseTeacher, EMATeacher, LiveTeacher
from stereorl.store.store import Store
from stereorl.store.versions import Versions
from tests.learn.tiny import make_sample

REMOTE = {"teacher": "remote", "teacher_endpoint": {"url": "http://127.0.0.1:9/v1/"}}


@pytest.fixture
def parts_of(tmp_path, tiny):
    """The parts that settings of signals, objective and weights make, over a model with a tokenizer."""
    with Store.open(f"sqlite:///{tmp_path / 'stereorl.db'}") as store:

        def made(signals, **sections):
            config = Config.model_validate(
                {"home": tmp_path, "signals": signals, "gate": {"retention_prompts": 0}, **sections}
            )
            return assemble(config, store=store, versions=Versions(config.versions_path), loaded=tiny)

        yield made


@pytest.mark.parametrize(
    ("signals", "kind"),
    [
        ({}, BaseTeacher),
        ({"teacher": "live"}, LiveTeacher),
        ({"teacher": "ema"}, EMATeacher),
        (REMOTE, RemoteTeacher),
    ],
)
def test_the_setting_names_the_teacher_and_all_share_it(parts_of, signals, kind):
    parts = parts_of(signals)
    assert type(parts.trainer.teacher) is kind
    assert parts.scorer._teacher is parts.trainer.teacher
    assert parts.scorer._teacher.name == signals.get("teacher", "base")
    assert parts.trainer.fusion.needs == Needs()
    assert parts.scorer._top_k == 0


@pytest.mark.parametrize("estimator", ["full", "topk_tail"])
def test_a_remote_teacher_whose_distribution_is_wanted_is_refused_at_the_start(parts_of, estimator):
    with pytest.raises(ConfigError, match="remote teacher cannot give"):
        parts_of(REMOTE, objective={"estimator": estimator})


def test_its_recorded_entries_will_do(parts_of):
    parts = parts_of(REMOTE, objective={"estimator": "topk_tail", "support": "teacher", "top_k": 7})
    assert parts.scorer._top_k == 7


@pytest.mark.parametrize(
    ("needs", "recorded"),
    [
        (Needs(), 0),
        (Needs(top_k=9, support="teacher"), 9),
        (Needs(top_k=9, support="student"), 0),
        (Needs(top_k=9, support="overlap"), 0),
        (Needs(vocabulary=True), 0),
        (Needs(top_k=9, support="teacher", vocabulary=True), 0),
    ],
)
def test_only_what_cannot_be_asked_at_the_step_is_recorded(needs, recorded):
    assert recorded_top_k(needs) == recorded


def test_the_average_follows_each_step_and_comes_back_with_the_checkpoint(parts_of):
    parts = parts_of({"teacher": "ema", "ema_rate": 0.5}, learn={"lr": 0.05, "lora_r": 4})
    trainer, average = parts.trainer, parts.trainer.teacher
    names = [name for name, _ in trainer.model.named_parameters() if "lora_B" in name]

    def means():
        return [average.state_dict()[name].clone() for name in names]

    assert not any(mean.any() for mean in means())
    trainer.step([make_sample(k, reward=1.0) for k in range(3)])
    policy = dict(trainer.model.named_parameters())
    for name, mean in zip(names, means(), strict=True):
        assert torch.allclose(mean, 0.5 * policy[name], atol=1e-7)
    assert any(mean.any() for mean in means())
    saved, before = trainer.state_dict(), means()
    saved = {**saved, "parts": {key: dict(part) for key, part in saved["parts"].items()}}
    saved["parts"]["teacher:EMATeacher"] = {k: v.clone() for k, v in average.state_dict().items()}
    trainer.step([make_sample(k, reward=-1.0) for k in range(3)])
    assert not all(torch.equal(a, b) for a, b in zip(before, means(), strict=True))
    trainer.load_state_dict(saved)
    assert all(torch.equal(a, b) for a, b in zip(before, means(), strict=True))
