"""From the names in a configuration to the parts of the objective. Nothing else in the learner knows a name."""

from __future__ import annotations

from dataclasses import fields

from stereorl.choices import COMBINERS, ESTIMATORS, FUSIONS, SCALES, SCHEDULES, build, fill, find
from stereorl.config import ObjectiveConfig, WeightsConfig
from stereorl.core import Combiner, Fusion, Scale, Schedule


def make_fusion(config: ObjectiveConfig) -> Fusion:
    """The fusion, with the estimator that is named or, for `auto`, the one that the fusion brings."""
    kind = find(FUSIONS, config.fusion)
    own = next((field.default for field in fields(kind) if field.name == "estimator"), None)
    given = {} if own is None else {"estimator": fill(type(own), config)}
    if config.estimator != "auto":
        given = {"estimator": build(ESTIMATORS, config.estimator, config)}
    fusion: Fusion = fill(kind, config, **given)
    return fusion


def make_schedule(config: WeightsConfig) -> Schedule:
    """The schedule that the configuration names."""
    schedule: Schedule = build(SCHEDULES, config.schedule, config)
    return schedule


def make_scale(config: ObjectiveConfig) -> Scale:
    """What the signals are divided by."""
    scale: Scale = build(SCALES, config.scale, config)
    return scale


def make_combiner(config: ObjectiveConfig) -> Combiner:
    """How the two signals' gradients become one. ConfigError when its library is not installed."""
    combiner: Combiner = build(COMBINERS, config.combine)
    return combiner
