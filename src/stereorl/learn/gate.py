"""Bad weights never serve (invariant 11): what an update must pass before it is published."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from stereorl.config import GateConfig
from stereorl.core import kl_estimate, masked_mean
from stereorl.learn.retention import Retention
from stereorl.learn.step import Trainer, Update


@dataclass(frozen=True, slots=True)
class GateReport:
    """`reasons` is empty when the update passed. `metrics` holds what was measured."""

    reasons: tuple[str, ...]
    metrics: dict[str, Any]

    @property
    def passed(self) -> bool:
        return not self.reasons


class Gate:
    """Checks the trainer's weights after a step. `retention` is called at the first check; it may take a while."""

    def __init__(self, config: GateConfig, retention: Callable[[], Retention | None]):
        self._config = config
        self._load_retention = retention
        self._retention: Retention | None = None
        self._loaded = False

    def check(self, trainer: Trainer, update: Update) -> GateReport:
        """Finite loss and weights, the KL to the reference on the batch, and retention, in order of cost."""
        if not update.applied:
            return GateReport(("there was no token to train",), {})
        if not math.isfinite(update.loss):
            return GateReport((f"the loss is {update.loss}",), {})
        if not all(bool(torch.isfinite(p).all()) for p in trainer.parameters):
            return GateReport(("a weight is not finite",), {})
        kl = self._kl(trainer, update)
        reasons = []
        if not kl <= self._config.kl_cap:
            reasons.append(
                f"the KL to the base is {kl:.3g} nats per token (gate.kl_cap {self._config.kl_cap:g})"
            )
        metrics = {"gate_kl": kl}
        drop = self._drop()
        if drop is not None:
            metrics["retention_drop"] = drop
            if not drop <= self._config.retention_drop:
                reasons.append(
                    f"the base's own replies lost {drop:.3g} nats per token "
                    f"(gate.retention_drop {self._config.retention_drop:g})"
                )
        return GateReport(tuple(reasons), metrics)

    def _kl(self, trainer: Trainer, update: Update) -> float:
        """Mean k3 to the reference over the batch's trained tokens, under the weights after the step."""
        logp_BT = trainer.all_log_probs(update.batch)
        kl_BT = kl_estimate(logp_BT, update.logp_ref_BT, kind="k3")
        kl = masked_mean(kl_BT, update.batch.mask_BT)
        assert kl is not None, "an applied update has trained tokens"
        return kl

    def _drop(self) -> float | None:
        if not self._loaded:
            self._retention = self._load_retention()
            self._loaded = True
        return None if self._retention is None else self._retention.drop()
