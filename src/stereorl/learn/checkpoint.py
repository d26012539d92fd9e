"""Weights, optimiser, baseline and random state in a version's folder; resuming equals never having stopped."""

from __future__ import annotations

import logging
import pickle
from pathlib import Path

import torch
from safetensors import SafetensorError

from stereorl.errors import VersionError
from stereorl.learn.step import Trainer
from stereorl.policy import adapters
from stereorl.policy.load import Loaded
from stereorl.store.versions import OPTIMIZER, Versions

log = logging.getLogger("stereorl.learn")


def save_checkpoint(trainer: Trainer, folder: Path, *, optimizer: bool = True) -> None:
    """Write the trainable weights and, if wanted, the trainer's state. VersionError when it cannot be written."""
    try:
        adapters.save(trainer.model, folder)
        if optimizer:
            torch.save(trainer.state_dict(), folder / OPTIMIZER)
    except (OSError, RuntimeError, SafetensorError) as error:
        raise VersionError(f"Cannot write the weights to {folder}: {error}. Is the disk full?") from error


def load_checkpoint(trainer: Trainer, folder: Path) -> None:
    """Inverse of `save_checkpoint`. Without a readable trainer state the optimiser starts anew, and says so."""
    adapters.load_into(trainer.model, folder)
    file = folder / OPTIMIZER
    if not file.is_file():
        log.info("%s has no optimiser state (pruned); its moments start anew.", folder.name)
        trainer.forget_optimizer()
        return
    try:
        trainer.load_state_dict(torch.load(file, map_location=trainer.device, weights_only=True))
    except (OSError, RuntimeError, ValueError, KeyError, EOFError, pickle.UnpicklingError) as error:
        log.warning("Cannot read %s (%s); the optimiser's moments start anew.", file, error)
        trainer.forget_optimizer()


class Checkpoints:
    """Puts the trainer at any version. The base has no folder, so its starting state is kept in `initial`."""

    def __init__(self, trainer: Trainer, versions: Versions, loaded: Loaded, initial: Path):
        self._trainer = trainer
        self._versions = versions
        self._digest = loaded.digest
        self._initial = initial
        save_checkpoint(trainer, initial)

    def restore(self, version: int) -> None:
        """Weights, optimiser and all as they were when `version` was published.

        VersionError when it is missing, broken, or was made from another base model.
        """
        self.check_base(version)
        folder = self._versions.path(version)
        load_checkpoint(self._trainer, folder or self._initial)

    def check_base(self, version: int) -> None:
        """VersionError when `version` is broken or was made from another base model."""
        if version:
            manifest = self._versions.manifest(version)
            if manifest.base_digest != self._digest:
                raise VersionError(
                    f"Version {version} was trained on '{manifest.base_model}', not on the model loaded now. "
                    "Start with that model, or give another --home."
                )
