"""The fused step on a tiny model: directions, equalities, no-ops, statistics."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from stereorl.core import AdvantageSum, Needs
from stereorl.learn.step import Trainer
from tests.learn.tiny import (
    log_probs,
    make_sample,
    make_turn,
    mixed,
    on_policy,
    same,
    tiny_trainer,
    weights,
)

ADAPTERS = ["lora", "full"]


@pytest.mark.parametrize("adapter", ADAPTERS)
@pytest.mark.parametrize("reward", [1.0, -1.0])
@pytest.mark.parametrize("baseline", ["none", "running"])
def test_a_reward_moves_the_reply_its_way(adapter, reward, baseline):
    trainer = tiny_trainer(adapter=adapter, baseline=baseline, lr=1e-3)
    sample = on_policy(trainer.model, make_sample(1, reward=reward))
    before = log_probs(trainer.model, sample).sum()
    trainer.step([sample])
    change = float(log_probs(trainer.model, sample).sum() - before)
    assert change * reward > 1e-3


@pytest.mark.parametrize("adapter", ADAPTERS)
def test_a_teacher_moves_what_it_prefers_relative_to_the_rest(adapter):
    trainer = tiny_trainer(adapter=adapter, lr=1e-3)
    sample = on_policy(trainer.model, make_sample(1, reward=1.0, r=8))
    own = log_probs(trainer.model, sample)
    preferred = np.arange(8) % 2 == 0
    taught = replace(
        sample,
        reward=None,
        hint="x",
        teacher_log_probs=(own.numpy() + np.where(preferred, 0.8, -0.8)).astype(np.float32),
    )
    trainer.step([taught])
    change = (log_probs(trainer.model, sample) - own).numpy()
    assert change[preferred].mean() > 0 > change[~preferred].mean()


@pytest.mark.parametrize(
    "samples",
    [
        [make_sample(1, reward=1.0)],
        [make_sample(1, teacher=True)],
        [make_sample(i, teacher=True, r=i) for i in (2, 5)],
        [make_sample(i, reward=(-1.0) ** i, r=i) for i in (2, 5)],
        mixed(),
    ],
    ids=["one reward", "one hint", "only hints", "only rewards", "mixed"],
)
def test_every_kind_of_batch_trains(samples):
    trainer = tiny_trainer(kl_coef=0.02)
    before = weights(trainer)
    update = trainer.step(samples)
    assert update.applied
    assert np.isfinite(update.loss)
    assert not same(before, weights(trainer))
    assert all(torch.isfinite(w).all() for w in weights(trainer))


@pytest.mark.parametrize("adapter", ADAPTERS)
def test_nothing_to_train_is_a_defined_no_op(adapter):
    trainer = tiny_trainer(adapter=adapter)
    trainer.step(mixed())  # moments that would move the weights on a zero gradient
    before, state = weights(trainer), trainer.state_dict()
    empty = replace(make_sample(1, reward=1.0), turn=make_turn([2, 3], []))
    update = trainer.step([empty])
    assert not update.applied
    assert same(before, weights(trainer))
    assert trainer.updates == state["updates"]
    assert trainer.running_mean == state["running_mean"]


@pytest.mark.parametrize("adapter", ADAPTERS)
def test_lr_zero_leaves_the_weights_and_gives_ratio_one(adapter):
    trainer = tiny_trainer(adapter=adapter, lr=0.0, epochs=3)
    before = weights(trainer)
    update = trainer.step([on_policy(trainer.model, sample) for sample in mixed()])
    assert same(before, weights(trainer))
    assert update.metrics["ratio_mean"] == 1.0  # in the third pass, against the first
    assert update.metrics["clip_fraction"] == 0.0
    assert update.metrics["importance_max"] == pytest.approx(1.0, abs=1e-5)
    assert update.metrics["kl"] < 1e-12  # the untrained adapter is the reference


@pytest.mark.parametrize("aggregation", ["seq_mean_token_mean", "token_mean"])
def test_micro_batches_add_up_to_the_whole(aggregation):
    small = tiny_trainer(micro_tokens=1, kl_coef=0.02, aggregation=aggregation, lr=1e-3)
    large = tiny_trainer(micro_tokens=100_000, kl_coef=0.02, aggregation=aggregation, lr=1e-3)
    for trainer in (small, large):
        trainer.step(mixed())  # leave the reference behind, so that the KL has a gradient
    left, right = small.step(mixed()), large.step(mixed())
    assert left.loss == pytest.approx(right.loss, abs=1e-5)
    assert left.metrics["grad_norm"] == pytest.approx(right.metrics["grad_norm"], abs=1e-5)
    for a, b in zip(weights(small), weights(large), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-5)


def test_row_order_does_not_change_the_step():
    left, right = tiny_trainer(kl_coef=0.02), tiny_trainer(kl_coef=0.02)
    a, b = left.step(mixed()), right.step(mixed()[::-1])
    assert a.loss == pytest.approx(b.loss, abs=1e-6)
    assert a.metrics["grad_norm"] == pytest.approx(b.metrics["grad_norm"], abs=1e-6)


def test_old_log_probs_stay_fixed_over_epochs():
    """Two epochs without a clip move further than one, and the second pass sees a ratio that is not 1."""
    trainer = tiny_trainer(epochs=2, lr=5e-3)
    update = trainer.step([on_policy(trainer.model, make_sample(1, reward=1.0))])
    assert update.metrics["ratio_mean"] > 1.0
    assert trainer.updates == 1


def test_a_clipped_token_stops_moving():
    """With a tiny interval every token is clipped after the first pass, so further passes change nothing but Adam."""
    trainer = tiny_trainer(epochs=4, lr=5e-3, eps_low=1e-4, eps_high=1e-4)
    update = trainer.step([on_policy(trainer.model, make_sample(1, reward=1.0))])
    assert update.metrics["clip_fraction"] > 0.5


def test_the_kl_term_pulls_back_to_the_reference():
    """A reward of 0 without a baseline leaves the KL alone in the loss."""
    trainer = tiny_trainer(baseline="none", kl_coef=1.0, lr=1e-3, kl="k2")
    sample = on_policy(trainer.model, make_sample(1, reward=1.0))
    for _ in range(5):
        trainer.step([sample])
    still = replace(sample, reward=0.0)
    far = trainer.step([still]).metrics["kl"]
    for _ in range(30):
        near = trainer.step([still]).metrics["kl"]
    assert near < far / 2


def test_an_old_sampler_is_corrected_with_a_cap():
    trainer = tiny_trainer(importance_cap=2.0)
    sample = on_policy(trainer.model, make_sample(1, reward=1.0))
    unlikely = replace(sample, turn=replace(sample.turn, log_probs=sample.turn.log_probs - 3))
    likely = replace(
        sample,
        turn=replace(sample.turn, log_probs=np.minimum(sample.turn.log_probs + np.float32(np.log(4)), 0)),
    )
    assert tiny_trainer().step([unlikely]).metrics["importance_max"] == 2.0
    assert trainer.step([likely]).metrics["importance_mean"] == pytest.approx(0.25, abs=1e-5)


def test_statistics():
    trainer = tiny_trainer(kl_coef=0.02)
    metrics = trainer.step(mixed(), version=3).metrics
    expected = {"n": 5, "n_reward": 4, "n_teacher": 3, "n_both": 2, "tokens": 30, "n_truncated_sampling": 0}
    assert {key: metrics[key] for key in expected} == expected
    assert metrics["reward_mean"] == pytest.approx(-0.25)
    assert metrics["baseline"] == pytest.approx(0.1 * -0.25)
    assert metrics["reply_length"] == 6.0
    assert metrics["staleness_max"] == 3
    assert metrics["by_version"] == {"0": {"n": 4, "reward": -0.25}, "2": {"n": 1}}
    assert metrics["loss"] == pytest.approx(
        metrics["term_eval"] + metrics["term_dir"] + metrics["term_kl"], abs=1e-6
    )
    assert metrics["gap_max"] >= metrics["gap_p95"] > 0
    assert metrics["entropy"] > 0
    assert metrics["grad_norm"] > 0
    only_rewards = trainer.step([make_sample(1, reward=1.0)]).metrics
    assert "gap_mean" not in only_rewards  # absent, not 0
    assert "reward_mean" not in trainer.step([make_sample(1, teacher=True)]).metrics


def test_the_trainer_takes_any_fusion():
    class Silent:
        needs = Needs()

        def __call__(self, streams, weights):
            return AdvantageSum(kl_coef=0.0)(streams, replace(weights, eval=0.0, dir=0.0))

    spoken = tiny_trainer()
    trainer = Trainer(spoken.model, spoken.config, fusion=Silent())
    before = weights(trainer)
    assert trainer.step(mixed()).metrics["grad_norm"] == 0.0
    assert same(before, weights(trainer))
