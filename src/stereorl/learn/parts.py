"""What a learner is made of, put together from a configuration. Torch is imported here, not in `loop`."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from stereorl.config import Config
from stereorl.learn.batcher import Batcher
from stereorl.learn.checkpoint import Checkpoints
from stereorl.learn.collector import Collector
from stereorl.learn.gate import Gate
from stereorl.learn.publish import Publisher
from stereorl.learn.retention import fixed_prompts, load_retention
from stereorl.learn.scoring import Scorer
from stereorl.learn.step import Trainer
from stereorl.policy.adapters import attach
from stereorl.policy.head import head_of
from stereorl.policy.load import Loaded
from stereorl.policy.render import Renderer
from stereorl.signals.judge import Judge, RulesJudge
from stereorl.signals.teacher import BaseTeacher, LiveTeacher, Teacher
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
    trainer = Trainer(model, learn)
    head_of(model)  # a model that cannot be trained is refused here, not at the first step
    retention = partial(load_retention, model, loaded, prompts=prompts, cache=config.home_path / "cache")
    return Parts(
        collector=Collector(store, judge or RulesJudge(), config.signals),
        scorer=Scorer(store, teacher or _teacher(config, model, loaded), at_a_time=learn.batch_size),
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
    )


def _teacher(config: Config, model: object, loaded: Loaded) -> Teacher:
    renderer = Renderer(loaded.tokenizer, loaded.context_length, loaded.eos_ids)
    kind = {"base": BaseTeacher, "live": LiveTeacher}[config.signals.teacher]
    return kind(model, renderer, config.signals.hint_label, micro_tokens=config.learn.micro_tokens)
