"""What a learner is made of, put together from a configuration. Torch is imported here, not in `loop`."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from functools import partial

from stereorl.config import Config
from stereorl.core import Needs
from stereorl.learn.batcher import Batcher
from stereorl.learn.checkpoint import Checkpoints
from stereorl.learn.choosing import OVERLAP_K, Choice, Longest, Overlap, Policy, Shortest
from stereorl.learn.collector import Collector
from stereorl.learn.distributions import asks_teacher
from stereorl.learn.gate import Gate
from stereorl.learn.publish import Publisher
from stereorl.learn.retention import fixed_prompts, load_retention
from stereorl.learn.scoring import Scorer
from stereorl.learn.step import Trainer
from stereorl.policy.adapters import attach
from stereorl.policy.head import head_of
from stereorl.policy.load import Loaded
from stereorl.policy.render import Renderer
from stereorl.signals.judge import Judge
from stereorl.signals.make import make_hinter, make_judge
from stereorl.signals.remote import RemoteTeacher
from stereorl.signals.teacher import BaseTeacher, EMATeacher, LiveTeacher, Teacher
from stereorl.store.store import Store
from stereorl.store.versions import Versions


@dataclass(frozen=True, slots=True)
class Parts:
    """One of each; the learner only puts them in order."""

    collector: Collector
    scorer: Scorer
    batcher: Batcher
    trainer: Trainer
    checkpoints: Checkpoints
    gate: Gate
    publisher: Publisher
    model_lock: threading.RLock  # held by whoever uses the weights: the learner's round, the base judge


def assemble(
    config: Config,
    *,
    store: Store,
    versions: Versions,
    loaded: Loaded,
    judge: Judge | None = None,
    teacher: Teacher | None = None,
) -> Parts:
    """Attach what trains to `loaded.model` (in place) and build everything around it.

    ConfigError or ModelError when that cannot work.
    """
    learn, run = config.learn, config.home_path / "run"
    prompts = fixed_prompts(config.gate.retention_prompts)
    model = attach(loaded, kind=learn.adapter, r=learn.lora_r, alpha=learn.lora_alpha, seed=learn.seed)
    teacher = teacher or make_teacher(config, model, loaded)
    trainer = Trainer(model, learn, config.objective, config.weights, teacher=teacher)
    head_of(model)  # a model that cannot be trained is refused here, not at the first step
    retention = partial(load_retention, model, loaded, prompts=prompts, cache=config.home_path / "cache")
    lock = threading.RLock()
    return Parts(
        collector=Collector(
            store,
            judge or make_judge(config.signals, model=model, loaded=loaded, lock=lock),
            config.signals,
            hinter=make_hinter(config.signals, model=model, loaded=loaded, lock=lock),
        ),
        scorer=Scorer(
            store,
            teacher,
            at_a_time=learn.batch_size,
            top_k=min(recorded_top_k(trainer.fusion.needs), _vocabulary(model)),
            asked_at_step=asks_teacher(trainer.fusion.needs),
            choice=_choice(config, model, teacher),
        ),
        batcher=Batcher(learn, run),
        trainer=trainer,
        checkpoints=Checkpoints(trainer, versions, loaded, run / "initial"),
        gate=Gate(config.gate, retention),
        publisher=Publisher(
            store=store,
            versions=versions,
            trainer=trainer,
            loaded=loaded,
            keep_versions=config.gate.keep_versions,
        ),
        model_lock=lock,
    )


def make_teacher(config: Config, model: object, loaded: Loaded) -> Teacher:
    """The teacher that `signals.teacher` names, over the attached `model`."""
    signals = config.signals
    renderer = Renderer(loaded.tokenizer, loaded.context_length, loaded.eos_ids)
    if signals.teacher == "remote":
        return RemoteTeacher(
            signals.teacher_endpoint, renderer, signals.hint_label, vocabulary=_vocabulary(model)
        )
    micro_tokens = config.learn.micro_tokens
    if signals.teacher == "ema":
        return EMATeacher(
            model, renderer, signals.hint_label, micro_tokens=micro_tokens, ema_rate=signals.ema_rate
        )
    kind = {"base": BaseTeacher, "live": LiveTeacher}[signals.teacher]
    return kind(model, renderer, signals.hint_label, micro_tokens=micro_tokens)


def recorded_top_k(needs: Needs) -> int:
    """How many of the teacher's likeliest ids to record: those that are not had from it at the step."""
    return 0 if asks_teacher(needs) else needs.top_k


def _vocabulary(model: object) -> int:
    return int(head_of(model).linear.weight.shape[0])


def _choice(config: Config, model: object, teacher: Teacher) -> Choice:
    name = config.signals.hint_choice
    if name == "overlap":
        return Overlap(Policy(model), teacher, min(config.objective.top_k, OVERLAP_K))
    return Shortest() if name == "shortest" else Longest()
