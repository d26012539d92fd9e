"""The maths of evaluative + directive learning: pure functions of tensors and floats.

Shapes in names: B batch, T tokens. Every function says its equation, source, shapes and errors.
"""

from stereorl.core.advantage import Baseline, advantage_sum, directive_gap, evaluative_advantage
from stereorl.core.aggregate import Aggregation, aggregate, token_weights, weighted_sum
from stereorl.core.fusion import AdvantageSum, Fusion, Objective, Streams
from stereorl.core.kl import KLKind, kl_estimate
from stereorl.core.schedule import Constant, Progress, Schedule, Weights
from stereorl.core.statistics import entropy_estimate, masked_mean, spread
from stereorl.core.surrogate import ClipMode, clip_active, clipped_surrogate, importance_weight, ratio

__all__ = [
    "AdvantageSum",
    "Aggregation",
    "Baseline",
    "ClipMode",
    "Constant",
    "Fusion",
    "KLKind",
    "Objective",
    "Progress",
    "Schedule",
    "Streams",
    "Weights",
    "advantage_sum",
    "aggregate",
    "clip_active",
    "clipped_surrogate",
    "directive_gap",
    "entropy_estimate",
    "evaluative_advantage",
    "importance_weight",
    "kl_estimate",
    "masked_mean",
    "ratio",
    "spread",
    "token_weights",
    "weighted_sum",
]
