"""What a fusion reads and what it gives back. The trainer hands over streams with masks and knows no algorithm."""

# ruff: noqa: N802, N815 - shapes live in names

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Protocol

import torch
from torch import Tensor

from stereorl.core.aggregate import Aggregation, token_weights
from stereorl.core.schedule import Weights
from stereorl.core.shapes import check_B, check_BT, check_BTK, check_mask

SupportKind = Literal["student", "teacher", "overlap"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Support:
    """Log-probs of K vocabulary entries at each token, of both sides; gradient flows into `logp_new_BTK` alone.

    Shapes: [B, T, K]. `mask_BTK` (bool) is False where there is no teacher or an entry does not count; there
    the log-probs may hold anything, also NaN. The entries of a token are distinct. Raises ValueError on other
    shapes or masks.
    """

    logp_new_BTK: Tensor
    logp_old_BTK: Tensor
    logp_teacher_BTK: Tensor
    mask_BTK: Tensor

    def __post_init__(self) -> None:
        check_BTK(**{name: getattr(self, name) for name in self.__slots__})
        check_mask(mask_BTK=self.mask_BTK)


class Vocabulary(Protocol):
    """Both sides' distributions over the whole vocabulary, read through a function so that [T, V] is never held."""

    def map(self, function: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
        """`function(log pi_new [N, V], log pi_teacher [N, V]) -> [N]` at N tokens; returns [B, T].

        The value of a token depends on its own row alone. 0 at tokens without a teacher. Gradient flows into
        log pi_new.
        """
        ...


@dataclass(frozen=True, slots=True, eq=False)
class DenseVocabulary:
    """A `Vocabulary` of plain tensors [B, T, V]; `mask_BT` (bool) says where there is a teacher."""

    logp_new_BTV: Tensor
    logp_teacher_BTV: Tensor
    mask_BT: Tensor

    def map(self, function: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
        mask = self.mask_BT
        value_N = function(self.logp_new_BTV[mask], self.logp_teacher_BTV[mask])
        return torch.zeros(mask.shape, dtype=value_N.dtype, device=mask.device).masked_scatter(mask, value_N)


@dataclass(frozen=True, slots=True)
class Needs:
    """What a fusion wants beside the sampled tokens' log-probs: `top_k` entries of `support`, or the `vocabulary`."""

    top_k: int = 0
    support: SupportKind = "student"
    vocabulary: bool = False

    @property
    def distribution(self) -> bool:
        """Whether the sampled tokens' log-probs of a teacher do not suffice."""
        return self.top_k > 0 or self.vocabulary


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Streams:
    """What a fusion may read about a (micro-)batch. Gradient flows into `logp_new_BT`, `support` and `vocabulary`.

    Shapes: [B, T] by name suffix, [B] for the rest. `mask_BT` (bool) marks trained tokens. `weight_BT` are
    their weights in the aggregate of the *whole* batch, `weight_eval_BT` and `weight_dir_BT` those of the
    tokens that carry each signal, over which they sum to 1. `reward_B` is the raw reward, `adv_eval_BT` what
    the baseline left of it.
    `has_reward_B`, `has_teacher_B` (bool): where a signal is absent its stream may hold anything, also NaN; padding
    holds any finite number. All log-probs are of the sampled tokens, at the temperature they were sampled at. Raises
    ValueError on other shapes or masks.
    """

    logp_new_BT: Tensor
    logp_old_BT: Tensor
    logp_behaviour_BT: Tensor
    logp_ref_BT: Tensor
    logp_teacher_BT: Tensor
    adv_eval_BT: Tensor
    weight_BT: Tensor
    weight_eval_BT: Tensor
    weight_dir_BT: Tensor
    mask_BT: Tensor
    reward_B: Tensor
    has_reward_B: Tensor
    has_teacher_B: Tensor
    support: Support | None = None
    vocabulary: Vocabulary | None = None

    def __post_init__(self) -> None:
        by_token = {name: getattr(self, name) for name in self.__slots__ if name.endswith("_BT")}
        rows, _ = check_BT(**by_token)
        check_B(
            rows, reward_B=self.reward_B, has_reward_B=self.has_reward_B, has_teacher_B=self.has_teacher_B
        )
        check_mask(mask_BT=self.mask_BT, has_reward_B=self.has_reward_B, has_teacher_B=self.has_teacher_B)

    @property
    def reward_mask_BT(self) -> Tensor:
        """Trained tokens that carry an evaluative signal."""
        return self.mask_BT & self.has_reward_B[:, None]

    @property
    def teacher_mask_BT(self) -> Tensor:
        """Trained tokens that carry a directive signal."""
        return self.mask_BT & self.has_teacher_B[:, None]

    def needed_support(self) -> Support:
        """The support; ValueError that says what to give when there is none."""
        if self.support is None:
            raise ValueError("This estimator reads Streams.support: give one (the trainer does by `needs`).")
        return self.support

    def needed_vocabulary(self) -> Vocabulary:
        """The vocabulary; ValueError that says what to give when there is none."""
        if self.vocabulary is None:
            raise ValueError(
                "This estimator reads Streams.vocabulary: give one (the trainer does by `needs`)."
            )
        return self.vocabulary


def make_streams(
    logp_new_BT: Tensor,
    mask_BT: Tensor,
    *,
    reward_B: Tensor | None = None,
    adv_B: Tensor | None = None,
    logp_old_BT: Tensor | None = None,
    logp_behaviour_BT: Tensor | None = None,
    logp_ref_BT: Tensor | None = None,
    logp_teacher_BT: Tensor | None = None,
    support: Support | None = None,
    vocabulary: Vocabulary | None = None,
    aggregation: Aggregation = "seq_mean_token_mean",
) -> Streams:
    """Streams of a whole batch from what there is. A row of NaN in `reward_B` or `logp_teacher_BT` lacks that signal.

    Absent: old = new, detached; behaviour = old; reference = old (a KL of 0); advantage = reward. A teacher's
    row counts as present when its trained tokens are all numbers. Shapes and errors: as `Streams`, and ValueError
    for a teacher's distribution without its `logp_teacher_BT`, by which rows have a teacher or not.
    """
    rows, _ = check_BT(logp_new_BT=logp_new_BT, mask_BT=mask_BT)
    check_mask(mask_BT=mask_BT)
    if logp_teacher_BT is None and (support is not None or vocabulary is not None):
        raise ValueError("Give logp_teacher_BT as well: it says which rows have a teacher.")
    old_BT = logp_new_BT.detach() if logp_old_BT is None else logp_old_BT
    nan_B = torch.full((rows,), float("nan"), dtype=logp_new_BT.dtype, device=logp_new_BT.device)
    reward = nan_B if reward_B is None else reward_B
    check_B(rows, reward_B=reward, adv_B=reward if adv_B is None else adv_B)
    teacher_BT = torch.full_like(old_BT, float("nan")) if logp_teacher_BT is None else logp_teacher_BT
    has_reward_B = ~reward.isnan()
    has_teacher_B = ~(teacher_BT.isnan() & mask_BT).any(1) & mask_BT.any(1)
    dtype = logp_new_BT.dtype

    def weights(mask: Tensor) -> Tensor:
        return token_weights(mask, mode=aggregation, dtype=dtype)

    return Streams(
        logp_new_BT=logp_new_BT,
        logp_old_BT=old_BT,
        logp_behaviour_BT=old_BT if logp_behaviour_BT is None else logp_behaviour_BT,
        logp_ref_BT=old_BT if logp_ref_BT is None else logp_ref_BT,
        logp_teacher_BT=teacher_BT,
        adv_eval_BT=(reward if adv_B is None else adv_B)[:, None].expand(logp_new_BT.shape),
        weight_BT=weights(mask_BT),
        weight_eval_BT=weights(mask_BT & has_reward_B[:, None]),
        weight_dir_BT=weights(mask_BT & has_teacher_B[:, None]),
        mask_BT=mask_BT,
        reward_B=reward,
        has_reward_B=has_reward_B,
        has_teacher_B=has_teacher_B,
        support=support,
        vocabulary=vocabulary,
    )


@dataclass(frozen=True, slots=True, eq=False)
class Objective:
    """`terms` are to be minimised together: their sum is the loss, and those of micro-batches add up.

    Each carries its weight and its gradient. "eval" and "dir" are the two signals' parts, absent signals give a 0;
    every other term is a regulariser. `tokens` are detached per-token values [B, T] for statistics.
    """

    terms: dict[str, Tensor]
    tokens: dict[str, Tensor]

    @property
    def loss(self) -> Tensor:
        first, *others = self.terms.values()
        return sum(others, first)


class Fusion(Protocol):
    """Makes one objective out of the streams, under the weights in force. `needs` says what else it reads."""

    @property
    def needs(self) -> Needs: ...

    def __call__(self, streams: Streams, weights: Weights, /) -> Objective: ...
