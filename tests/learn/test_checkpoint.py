from __future__ import annotations

import pytest

from stereorl.errors import VersionError
from stereorl.learn.checkpoint import load_checkpoint, save_checkpoint
from tests.learn.tiny import make_sample, mixed, same, tiny_trainer, weights


def batches():
    return [
        mixed(),
        [make_sample(i, reward=1.0) for i in (7, 8)],
        mixed()[::-1],
        [make_sample(9, teacher=True)],
    ]


@pytest.mark.parametrize("adapter", ["lora", "full"])
def test_resuming_equals_never_having_stopped(tmp_path, adapter):
    settings = {"adapter": adapter, "kl_coef": 0.02, "epochs": 2, "weight_decay": 0.01, "lr": 1e-3}
    whole, first, second = (tiny_trainer(**settings) for _ in range(3))
    for samples in batches():
        whole.step(samples)
    for samples in batches()[:2]:
        first.step(samples)
    save_checkpoint(first, tmp_path / "v")
    load_checkpoint(second, tmp_path / "v")
    for samples in batches()[2:]:
        second.step(samples)
    assert same(weights(whole), weights(second))
    assert whole.running_mean == second.running_mean
    assert whole.updates == second.updates == 4


def test_the_configuration_wins_over_the_checkpoint(tmp_path):
    save_checkpoint(tiny_trainer(lr=1e-2), tmp_path)
    other = tiny_trainer(lr=1e-4)
    load_checkpoint(other, tmp_path)
    assert other.optimizer.param_groups[0]["lr"] == 1e-4


def test_a_pruned_or_damaged_optimiser_state_starts_anew(tmp_path, caplog):
    trainer = tiny_trainer()
    trainer.step(mixed())
    save_checkpoint(trainer, tmp_path)
    (tmp_path / "trainer.pt").write_bytes(b"not a checkpoint")
    other = tiny_trainer()
    load_checkpoint(other, tmp_path)
    assert same(weights(trainer), weights(other))
    assert other.optimizer.state_dict()["state"] == {}
    assert "start anew" in caplog.text
    (tmp_path / "trainer.pt").unlink()
    load_checkpoint(other, tmp_path)
    assert other.optimizer.state_dict()["state"] == {}


def test_a_full_disk_is_named(tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(VersionError, match="Cannot write the weights"):
        save_checkpoint(tiny_trainer(), tmp_path / "file")
