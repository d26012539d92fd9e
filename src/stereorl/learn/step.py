"""The fused step: one batch of samples becomes one or more optimiser steps.

The trainer knows no algorithm. It runs the model on the sampled ids, hands per-token streams to the fusion,
and follows the gradient of what comes back. Old log-probs are its own first forward pass,
detached, so the ratio is exactly 1 there (invariant 2); with more epochs they stay fixed. What the engine
recorded enters only as the behaviour policy, through the importance weight.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from stereorl.config import LearnConfig, ObjectiveConfig, WeightsConfig
from stereorl.core import (
    Fusion,
    Objective,
    Progress,
    Schedule,
    SignalSizes,
    Weights,
    directive_gap,
    evaluative_advantage,
    parameter_anchor,
    rms,
    token_weights,
)
from stereorl.data import Sample
from stereorl.errors import ConfigError
from stereorl.learn.batch import Batch, collate, micro_batches
from stereorl.learn.distributions import Distributions, asks_teacher
from stereorl.learn.gradients import TermGradients, statistics
from stereorl.learn.metrics import Tokens, describe
from stereorl.learn.objective import make_combiner, make_fusion, make_scale, make_schedule
from stereorl.policy.adapters import reference
from stereorl.policy.recompute import recomputing
from stereorl.policy.score import Positions
from stereorl.signals.teacher import Teacher


@dataclass(frozen=True, slots=True, eq=False)
class Update:
    """What a step did. `applied` False: no token trained, and weights and optimiser are untouched."""

    applied: bool
    loss: float
    metrics: dict[str, Any]
    batch: Batch
    logp_ref_BT: Tensor  # noqa: N815


class Trainer:
    """Optimiser, baseline and schedule over the trainable parameters of an attached model."""

    def __init__(
        self,
        model: Any,
        config: LearnConfig,
        objective: ObjectiveConfig | None = None,
        weights: WeightsConfig | None = None,
        *,
        fusion: Fusion | None = None,
        schedule: Schedule | None = None,
        teacher: Teacher | None = None,
    ):
        """`teacher` is asked at the step by estimators that read its distribution, and told of each step.

        ConfigError when the fusion needs such a teacher and this one is in another process.
        """
        self.model = model
        self.config = config
        self.objective = objective or ObjectiveConfig()
        self.fusion = fusion or make_fusion(self.objective)
        self.schedule = schedule or make_schedule(weights or WeightsConfig())
        self.scale = make_scale(self.objective)
        self.combine = make_combiner(self.objective)
        self.teacher = teacher
        if asks_teacher(self.fusion.needs) and not hasattr(teacher, "positions"):
            given = "no teacher" if teacher is None else f"a {teacher.name} teacher"
            raise ConfigError(
                f"The objective reads the teacher's whole distribution, which {given} cannot give. "
                "Use a teacher in this process, estimator = sampled, or topk_tail with support = teacher."
            )
        self.updates = 0
        self.running_mean = 0.0
        self.progress = Progress(0)
        self.parameters = [p for p in model.parameters() if p.requires_grad]
        self.anchors = [p.detach().clone() for p in self.parameters] if self.objective.anchor_coef else []
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
            baseline=self.objective.baseline,
            running_mean=self.running_mean,
            decay=self.objective.baseline_decay,
        )
        passes = _Passes(self, samples, batch, adv_B)
        losses = [passes.run(first=epoch == 0) for epoch in range(self.config.epochs)]
        self.running_mean = running_mean
        self.updates += 1
        metrics = {
            **passes.statistics(samples, version),
            "update": self.updates,
            "baseline": self.running_mean,
        }
        self._learned(metrics, passes)
        metrics["step_seconds"] = time.perf_counter() - begun
        return Update(True, losses[0], metrics, batch, passes.logp_ref_BT)

    def positions(self, batch: Batch, rows: Sequence[int]) -> Positions:
        """One forward pass over `rows` under the weights in force, with gradient."""
        long = max(batch.lengths[row] for row in rows) > self.config.micro_tokens
        with recomputing(self.model, on=long):
            return Positions.of(
                self.model,
                [batch.prompts[row] for row in rows],
                [batch.responses[row] for row in rows],
                temperature=batch.temperature_B[list(rows)],
            )

    def log_probs(self, batch: Batch, rows: Sequence[int]) -> Tensor:
        """log pi of the response tokens of `rows` [b, t] under the weights in force, with gradient."""
        return self.positions(batch, rows).log_probs()

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
            "progress": asdict(self.progress),
            "parts": {name: part.state_dict() for name, part in self._parts().items()},
            "anchors": self.anchors,
            "optimizer": self.optimizer.state_dict(),
            "rng": torch.get_rng_state(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Inverse of `state_dict`. Settings come from the configuration, and a part of another kind begins anew."""
        self.updates = int(state["updates"])
        self.running_mean = float(state["running_mean"])
        self.progress = Progress(**state.get("progress", {"step": self.updates}))
        for name, part in self._parts().items():
            if name in state.get("parts", {}):
                part.load_state_dict(state["parts"][name])
        if self.anchors and state.get("anchors"):
            self.anchors = [anchor.to(self.device) for anchor in state["anchors"]]
        self.optimizer = self._fresh_optimizer()
        groups = self.optimizer.state_dict()["param_groups"]
        self.optimizer.load_state_dict({"state": state["optimizer"]["state"], "param_groups": groups})
        torch.set_rng_state(state["rng"].cpu())

    def _parts(self) -> dict[str, Any]:
        """What has a state of its own, by a name that changes with its kind."""
        parts = {"schedule": self.schedule, "scale": self.scale}
        if self.teacher is not None:
            parts["teacher"] = self.teacher
        return {f"{name}:{type(part).__name__}": part for name, part in parts.items()}

    def _learned(self, metrics: dict[str, Any], passes: _Passes) -> None:
        """Tell schedule, scale and teacher what this update was."""
        scheduled, weights = passes.scheduled, passes.weights
        at_one = {
            name: metrics[f"grad_norm_{name}"] / weight
            for name, weight in (("eval", scheduled.eval), ("dir", scheduled.dir))
            if weight > 0 and f"grad_norm_{name}" in metrics
        }
        self.progress = Progress(
            step=self.updates,
            mean_reward=metrics.get("reward_mean", self.progress.mean_reward),
            directive_share=metrics["n_teacher"] / metrics["n"],
            eval_norm=at_one.get("eval"),
            dir_norm=at_one.get("dir"),
        )
        self.scale.observe(
            passes.terms.get("eval", 0.0) / weights.eval
            if metrics["n_reward"] and weights.eval > 0
            else None,
            passes.terms.get("dir", 0.0) / weights.dir if metrics["n_teacher"] and weights.dir > 0 else None,
        )
        if self.teacher is not None:
            self.teacher.follow()

    def forget_optimizer(self) -> None:
        """Start the optimiser's moments anew, for a version whose optimiser state was pruned."""
        self.optimizer = self._fresh_optimizer()

    def _fresh_optimizer(self) -> torch.optim.Optimizer:
        c = self.config
        return torch.optim.AdamW(self.parameters, lr=c.lr, betas=c.betas, weight_decay=c.weight_decay)


class _Passes:
    """The passes over one batch. Old and reference log-probs are taken in the first and kept."""

    def __init__(self, trainer: Trainer, samples: Sequence[Sample], batch: Batch, adv_B: Tensor):
        self.trainer, self.batch, self.adv_B = trainer, batch, adv_B
        self.scheduled = trainer.schedule.weights(trainer.progress)
        self.scales = trainer.scale.scales(_sizes(batch, adv_B, trainer.objective.gap_clip))
        self.weights = Weights(self.scheduled.eval * self.scales.eval, self.scheduled.dir * self.scales.dir)
        self.token_weights = _token_weights(batch, trainer.objective.aggregation)
        self.groups = micro_batches(batch.lengths, trainer.config.micro_tokens)
        self.distributions = Distributions(trainer.fusion.needs, _in_process(trainer.teacher), samples, batch)
        self.logp_old_BT = torch.zeros_like(batch.logp_behaviour_BT)
        self.logp_ref_BT = torch.zeros_like(batch.logp_behaviour_BT)
        self.tokens = Tokens(batch.mask_BT)
        self.terms: dict[str, float] = {}
        self.loss = 0.0
        self.grad_norms: list[float] = []
        self.gradients: TermGradients | None = None

    def run(self, *, first: bool) -> float:
        """Sum the micro-batches' gradients, clip, take one optimiser step; returns the loss before it."""
        trainer = self.trainer
        trainer.optimizer.zero_grad(set_to_none=True)
        gradients = TermGradients(trainer.parameters) if trainer.objective.term_gradients else None
        loss = 0.0
        for rows in self.groups:
            objective, output_NH = self._objective(rows, first)
            loss += self._backward(objective.terms, gradients, output_NH)
            self._note(rows, objective, first)
        loss += self._anchor(gradients, first)
        if gradients is not None:
            gradients.put(trainer.combine)
        norm = torch.nn.utils.clip_grad_norm_(trainer.parameters, trainer.config.grad_clip)
        self.grad_norms.append(float(norm))
        trainer.optimizer.step()
        trainer.optimizer.zero_grad(set_to_none=True)
        if first:
            self.loss, self.gradients = loss, gradients
        return loss

    def statistics(self, samples: Sequence[Sample], version: int) -> dict[str, Any]:
        scales = {"scale_eval": self.scales.eval, "scale_dir": self.scales.dir}
        return {
            "loss": self.loss,
            **{f"term_{name}": value for name, value in self.terms.items()},
            "w_eval": self.scheduled.eval,
            "w_dir": self.scheduled.dir,
            **(scales if self.scales != Weights(1.0, 1.0) else {}),
            "grad_norm": max(self.grad_norms),
            **statistics(self.gradients),
            **describe(samples, self.tokens, self.logp_old_BT, version=version),
        }

    def _objective(self, rows: Sequence[int], first: bool) -> tuple[Objective, Tensor]:
        """The objective of a micro-batch, and the hidden states that its gradient passes through."""
        trainer = self.trainer
        if first:  # before the forward with gradient: none may be taken across the reference's edges
            with reference(trainer.model), torch.no_grad():
                _put(self.logp_ref_BT, rows, trainer.log_probs(self.batch, rows), self.batch)
        taught = self.distributions.teach(rows)
        policy = trainer.positions(self.batch, rows)
        logp_new_bt = policy.log_probs()
        if first:
            _put(self.logp_old_BT, rows, logp_new_bt.detach(), self.batch)
        streams = self.batch.streams(
            rows,
            logp_new_bt=logp_new_bt,
            logp_old_BT=self.logp_old_BT,
            logp_ref_BT=self.logp_ref_BT,
            adv_B=self.adv_B,
            weights_BT=self.token_weights,
            support=self.distributions.support(rows, policy, taught),
            vocabulary=self.distributions.vocabulary(rows, policy, taught),
        )
        return trainer.fusion(streams, self.weights), policy.hidden_NH

    def _backward(
        self, terms: dict[str, Tensor], gradients: TermGradients | None, output: Tensor | None
    ) -> float:
        loss = sum(float(term.detach()) for term in terms.values())
        if gradients is not None:
            gradients.add(terms, output)
        else:
            total = sum(terms.values())
            assert isinstance(total, Tensor)
            total.backward()  # type: ignore[no-untyped-call]
        return loss

    def _anchor(self, gradients: TermGradients | None, first: bool) -> float:
        trainer = self.trainer
        if not trainer.anchors:
            return 0.0
        term = trainer.objective.anchor_coef * parameter_anchor(trainer.parameters, trainer.anchors)
        if first:
            self.terms["anchor"] = float(term.detach())
        return self._backward({"anchor": term}, gradients, None)

    def _note(self, rows: Sequence[int], objective: Objective, first: bool) -> None:
        if first:
            for name, value in objective.terms.items():
                self.terms[name] = self.terms.get(name, 0.0) + float(value.detach())
        self.tokens.add(rows, objective.tokens)


def _in_process(teacher: Any) -> Any:
    """The teacher, if its distribution can be had."""
    return teacher if hasattr(teacher, "positions") else None


def _sizes(batch: Batch, adv_B: Tensor, gap_clip: float | None) -> SignalSizes:
    """How large each signal is over the whole batch, before any pass: the gap is against who sampled."""
    taught_BT = batch.mask_BT & batch.has_teacher_B[:, None]
    gap_BT = directive_gap(batch.logp_teacher_BT, batch.logp_behaviour_BT, taught_BT, clip=gap_clip)
    rewarded_BT = batch.mask_BT & batch.has_reward_B[:, None]
    return SignalSizes(
        eval_rms=rms(adv_B[:, None].expand(batch.mask_BT.shape), rewarded_BT),
        dir_rms=rms(gap_BT, taught_BT),
    )


def _token_weights(batch: Batch, mode: Any) -> dict[str, Tensor]:
    """Each token's weight among all tokens, among those rewarded and among those taught, [B, T] each."""
    masks = {
        "weight_BT": batch.mask_BT,
        "weight_eval_BT": batch.mask_BT & batch.has_reward_B[:, None],
        "weight_dir_BT": batch.mask_BT & batch.has_teacher_B[:, None],
    }
    return {name: token_weights(mask_BT, mode=mode) for name, mask_BT in masks.items()}


def _put(out_BT: Tensor, rows: Sequence[int], logp_bt: Tensor, batch: Batch) -> None:
    """Write a micro-batch's log-probs into the batch's; its padding stays as it was."""
    index = torch.as_tensor(rows, device=out_BT.device)
    width = logp_bt.shape[1]
    out_BT[index, :width] = torch.where(batch.mask_BT[index, :width], logp_bt, out_BT[index, :width])
