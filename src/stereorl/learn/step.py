"""The fused step: one batch of samples becomes one or more optimiser steps.

The trainer knows no algorithm. It runs the model on the sampled ids, hands per-token streams to the fusion,
and follows the gradient of what comes back. Old log-probs are its own first forward pass,
detached, so the ratio is exactly 1 there (invariant 2); with more epochs they stay fixed. What the engine
recorded enters only as the behaviour policy, through the importance weight.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from stereorl.config import LearnConfig
from stereorl.core import (
    AdvantageSum,
    Constant,
    Fusion,
    Objective,
    Progress,
    Schedule,
    evaluative_advantage,
    token_weights,
)
from stereorl.data import Sample
from stereorl.learn.batch import Batch, collate, micro_batches
from stereorl.learn.metrics import Tokens, describe
from stereorl.policy.adapters import reference
from stereorl.policy.recompute import recomputing
from stereorl.policy.score import response_log_probs


@dataclass(frozen=True, slots=True, eq=False)
class Update:
    """What a step did. `applied` False: no token trained, and weights and optimiser are untouched."""

    applied: bool
    loss: float
    metrics: dict[str, Any]
    batch: Batch
    logp_ref_BT: Tensor  # noqa: N815


def make_fusion(config: LearnConfig) -> Fusion:
    """The fusion that the configuration names."""
    return AdvantageSum(
        gap_clip=config.gap_clip,
        clip=config.clip,
        eps_low=config.eps_low,
        eps_high=config.eps_high,
        kl=config.kl,
        kl_coef=config.kl_coef,
        importance_cap=config.importance_cap,
    )


def make_schedule(config: LearnConfig) -> Schedule:
    """The schedule that the configuration names."""
    return Constant(config.w_eval, config.w_dir)


class Trainer:
    """Optimiser, baseline and schedule over the trainable parameters of an attached model."""

    def __init__(
        self,
        model: Any,
        config: LearnConfig,
        *,
        fusion: Fusion | None = None,
        schedule: Schedule | None = None,
    ):
        self.model = model
        self.config = config
        self.fusion = fusion or make_fusion(config)
        self.schedule = schedule or make_schedule(config)
        self.updates = 0
        self.running_mean = 0.0
        self.parameters = [p for p in model.parameters() if p.requires_grad]
        self.optimizer = self._fresh_optimizer()

    @property
    def device(self) -> torch.device:
        device: torch.device = self.parameters[0].device
        return device

    def step(self, samples: Sequence[Sample], *, version: int = 0) -> Update:
        """Train on `samples`. `version` is the policy version trained, for the staleness statistics.

        With no trained token this is a defined no-op. A loss or gradient that is not finite is followed all
        the same and reported; the gate rejects what comes of it.
        """
        begun = time.perf_counter()
        batch = collate(samples, device=self.device)
        if not bool(batch.mask_BT.any()):
            return Update(False, 0.0, {"n": len(batch)}, batch, torch.zeros_like(batch.logp_teacher_BT))
        adv_B, running_mean = evaluative_advantage(
            batch.reward_B,
            batch.has_reward_B,
            baseline=self.config.baseline,
            running_mean=self.running_mean,
            decay=self.config.baseline_decay,
        )
        passes = _Passes(self, batch, adv_B)
        losses = [passes.run(first=epoch == 0) for epoch in range(self.config.epochs)]
        self.running_mean = running_mean
        self.updates += 1
        metrics = {
            **passes.statistics(samples, version),
            "update": self.updates,
            "baseline": self.running_mean,
            "step_seconds": time.perf_counter() - begun,
        }
        return Update(True, losses[0], metrics, batch, passes.logp_ref_BT)

    def log_probs(self, batch: Batch, rows: Sequence[int]) -> Tensor:
        """log pi of the response tokens of `rows` [b, t] under the weights in force, with gradient."""
        long = max(batch.lengths[row] for row in rows) > self.config.micro_tokens
        with recomputing(self.model, on=long):
            logp_bt, _ = response_log_probs(
                self.model,
                [batch.prompts[row] for row in rows],
                [batch.responses[row] for row in rows],
                temperature=batch.temperature_B[list(rows)],
            )
        return logp_bt

    @torch.no_grad()
    def all_log_probs(self, batch: Batch) -> Tensor:
        """log pi of every response token of the batch [B, T], without gradient."""
        out_BT = torch.zeros_like(batch.logp_behaviour_BT)
        for rows in micro_batches(batch.lengths, self.config.micro_tokens):
            _put(out_BT, rows, self.log_probs(batch, rows), batch)
        return out_BT

    def state_dict(self) -> dict[str, Any]:
        """All that a resumed run needs beside the weights."""
        return {
            "updates": self.updates,
            "running_mean": self.running_mean,
            "schedule": self.schedule.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "rng": torch.get_rng_state(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Inverse of `state_dict`. The optimiser's settings come from the configuration."""
        self.updates = int(state["updates"])
        self.running_mean = float(state["running_mean"])
        self.schedule.load_state_dict(state["schedule"])
        self.optimizer = self._fresh_optimizer()
        groups = self.optimizer.state_dict()["param_groups"]
        self.optimizer.load_state_dict({"state": state["optimizer"]["state"], "param_groups": groups})
        torch.set_rng_state(state["rng"].cpu())

    def forget_optimizer(self) -> None:
        """Start the optimiser's moments anew, for a version whose optimiser state was pruned."""
        self.optimizer = self._fresh_optimizer()

    def _fresh_optimizer(self) -> torch.optim.Optimizer:
        c = self.config
        return torch.optim.AdamW(self.parameters, lr=c.lr, betas=c.betas, weight_decay=c.weight_decay)


class _Passes:
    """The passes over one batch. Old and reference log-probs are taken in the first and kept."""

    def __init__(self, trainer: Trainer, batch: Batch, adv_B: Tensor):
        self.trainer, self.batch, self.adv_B = trainer, batch, adv_B
        config = trainer.config
        self.weights = trainer.schedule.weights(Progress(trainer.updates, trainer.running_mean))
        self.weight_BT = token_weights(batch.mask_BT, mode=config.aggregation)
        self.groups = micro_batches(batch.lengths, config.micro_tokens)
        self.logp_old_BT = torch.zeros_like(batch.logp_behaviour_BT)
        self.logp_ref_BT = torch.zeros_like(batch.logp_behaviour_BT)
        self.tokens = Tokens(batch.mask_BT)
        self.terms: dict[str, float] = {}
        self.loss = 0.0
        self.grad_norms: list[float] = []

    def run(self, *, first: bool) -> float:
        """Sum the micro-batches' gradients, clip, take one optimiser step; returns the loss before it."""
        trainer = self.trainer
        trainer.optimizer.zero_grad(set_to_none=True)
        loss = 0.0
        for rows in self.groups:
            if first:  # before the forward with gradient: none may be taken across the reference's edges
                with reference(trainer.model), torch.no_grad():
                    _put(self.logp_ref_BT, rows, trainer.log_probs(self.batch, rows), self.batch)
            logp_new_bt = trainer.log_probs(self.batch, rows)
            if first:
                _put(self.logp_old_BT, rows, logp_new_bt.detach(), self.batch)
            objective = trainer.fusion(self._streams(rows, logp_new_bt), self.weights)
            objective.loss.backward()  # type: ignore[no-untyped-call]
            loss += float(objective.loss.detach())
            self._note(rows, objective, first)
        norm = torch.nn.utils.clip_grad_norm_(trainer.parameters, trainer.config.grad_clip)
        self.grad_norms.append(float(norm))
        trainer.optimizer.step()
        trainer.optimizer.zero_grad(set_to_none=True)
        if first:
            self.loss = loss
        return loss

    def statistics(self, samples: Sequence[Sample], version: int) -> dict[str, Any]:
        return {
            "loss": self.loss,
            **{f"term_{name}": value for name, value in self.terms.items()},
            "w_eval": self.weights.eval,
            "w_dir": self.weights.dir,
            "grad_norm": max(self.grad_norms),
            **describe(samples, self.tokens, self.logp_old_BT, version=version),
        }

    def _streams(self, rows: Sequence[int], logp_new_bt: Tensor) -> Any:
        return self.batch.streams(
            rows,
            logp_new_bt=logp_new_bt,
            logp_old_BT=self.logp_old_BT,
            logp_ref_BT=self.logp_ref_BT,
            adv_B=self.adv_B,
            weight_BT=self.weight_BT,
        )

    def _note(self, rows: Sequence[int], objective: Objective, first: bool) -> None:
        if first:
            for name, value in objective.terms.items():
                self.terms[name] = self.terms.get(name, 0.0) + float(value)
        self.tokens.add(rows, objective.tokens)


def _put(out_BT: Tensor, rows: Sequence[int], logp_bt: Tensor, batch: Batch) -> None:
    """Write a micro-batch's log-probs into the batch's; its padding stays as it was."""
    index = torch.as_tensor(rows, device=out_BT.device)
    width = logp_bt.shape[1]
    out_BT[index, :width] = torch.where(batch.mask_BT[index, :width], logp_bt, out_BT[index, :width])
