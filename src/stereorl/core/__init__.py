"""The maths of evaluative + directive learning: pure functions of tensors and floats.

Shapes in names: B batch, T tokens, K top-k, V vocabulary, P parameters. Every function says its equation,
source, shapes and errors. `make_streams` is the way in with plain tensors; nothing here needs a server, a
store or a configuration.
"""

from stereorl.core.advantage import Baseline, advantage_sum, directive_gap, evaluative_advantage
from stereorl.core.aggregate import Aggregation, aggregate, token_weights, weighted_sum
from stereorl.core.anchor import parameter_anchor
from stereorl.core.combine import Combiner, PCGrad, Sum, UPGrad
from stereorl.core.conflict import cosine, norm
from stereorl.core.divergence import divergence, entropy, forward_kl, mean_gap, reverse_kl, with_tail
from stereorl.core.estimators import Directive, Estimator, Full, Sampled, TopKClip, TopKTail
from stereorl.core.fusions.advantage_sum import AdvantageSum
from stereorl.core.fusions.base import Clipped
from stereorl.core.fusions.loss_sum import LossSum
from stereorl.core.fusions.route import Route
from stereorl.core.fusions.topk import TopK
from stereorl.core.kl import KLKind, kl_estimate
from stereorl.core.process import group_advantage, process_reward
from stereorl.core.returns import gae
from stereorl.core.scale import LossStd, NoScale, Scale, SignalRMS, SignalSizes, rms
from stereorl.core.schedule import (
    Balance,
    Complementary,
    Constant,
    Cosine,
    Density,
    Linear,
    Performance,
    Progress,
    Schedule,
    Weights,
)
from stereorl.core.statistics import entropy_estimate, masked_mean, spread
from stereorl.core.streams import (
    DenseVocabulary,
    Fusion,
    Needs,
    Objective,
    Streams,
    Support,
    SupportKind,
    Vocabulary,
    make_streams,
)
from stereorl.core.surrogate import (
    ClipMode,
    clip_active,
    clipped_surrogate,
    importance_weight,
    ratio,
    surrogate_ratio,
)

__all__ = [
    "AdvantageSum",
    "Aggregation",
    "Balance",
    "Baseline",
    "ClipMode",
    "Clipped",
    "Combiner",
    "Complementary",
    "Constant",
    "Cosine",
    "DenseVocabulary",
    "Density",
    "Directive",
    "Estimator",
    "Full",
    "Fusion",
    "KLKind",
    "Linear",
    "LossStd",
    "LossSum",
    "Needs",
    "NoScale",
    "Objective",
    "PCGrad",
    "Performance",
    "Progress",
    "Route",
    "Sampled",
    "Scale",
    "Schedule",
    "SignalRMS",
    "SignalSizes",
    "Streams",
    "Sum",
    "Support",
    "SupportKind",
    "TopK",
    "TopKClip",
    "TopKTail",
    "UPGrad",
    "Vocabulary",
    "Weights",
    "advantage_sum",
    "aggregate",
    "clip_active",
    "clipped_surrogate",
    "cosine",
    "directive_gap",
    "divergence",
    "entropy",
    "entropy_estimate",
    "evaluative_advantage",
    "forward_kl",
    "gae",
    "group_advantage",
    "importance_weight",
    "kl_estimate",
    "make_streams",
    "masked_mean",
    "mean_gap",
    "norm",
    "parameter_anchor",
    "process_reward",
    "ratio",
    "reverse_kl",
    "rms",
    "spread",
    "surrogate_ratio",
    "token_weights",
    "weighted_sum",
    "with_tail",
]
