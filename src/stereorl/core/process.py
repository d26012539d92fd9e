"""Rewards of agents that act in an environment: an outcome with step votes, standardised within groups."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

_SAME = 1e-6  # rewards that differ by less than this part of the largest are equal up to rounding


def process_reward(outcome_N: Tensor, vote_NM: Tensor) -> Tensor:
    """R = outcome + mean of the step's valid votes; the outcome alone when no vote is valid.

    Source: arXiv 2603.10165, general agents (outcome +-1, votes +-1, a mean and not a majority).
    Shapes: outcome_N [N], that of the trajectory of each of N steps; vote_NM [N, M], NaN for an invalid vote
        (M may be 0); returns [N].
    Errors: ValueError on other shapes, and for a vote that is neither +1, -1 nor NaN: an abstention that counted
        as 0 would dilute the mean.
    """
    if outcome_N.dim() != 1 or vote_NM.dim() != 2 or len(vote_NM) != len(outcome_N):
        raise ValueError(
            f"outcome_N has shape {list(outcome_N.shape)} and vote_NM {list(vote_NM.shape)}: give [N] and [N, M]."
        )
    valid_NM = ~vote_NM.isnan()
    if bool((vote_NM[valid_NM].abs() != 1).any()):
        raise ValueError("vote_NM must hold +1, -1, or NaN where a vote is invalid.")
    total_N = torch.where(valid_NM, vote_NM, torch.zeros_like(vote_NM)).sum(dim=1)
    return outcome_N + total_N / valid_NM.sum(dim=1).clamp(min=1)


def group_advantage(
    reward_N: Tensor, group_N: Tensor, *, step_N: Tensor | None = None, eps: float = 1e-6
) -> tuple[Tensor, Tensor]:
    """(A, kept): rewards standardised within their group, or within (group, step index).

    Equation: A = (R - mean) / (std + eps), population std. A group of one keeps its raw reward. A constant
        group of more gives A = 0 and kept False: it says nothing about which was better.
    Source: GRPO (arXiv 2402.03300); by step index as in arXiv 2603.10165, general agents.
    Shapes: all [N], group_N and step_N of whole numbers; returns A [N] and kept bool [N].
    Errors: ValueError on other shapes, keys that are not whole numbers, a reward that is not finite, eps < 0.

    Constant means equal up to rounding, and does not depend on how large the rewards are.
    """
    keys = {"group_N": group_N} if step_N is None else {"group_N": group_N, "step_N": step_N}
    _check(reward_N, keys, eps)
    unique: Any = torch.unique
    _, at_N = unique(
        torch.stack([key_N.long() for key_N in keys.values()], dim=1), dim=0, return_inverse=True
    )
    reward = reward_N.double()
    zero_G = reward.new_zeros(int(at_N.max()) + 1 if len(at_N) else 0)
    count_G = zero_G.index_add(0, at_N, torch.ones_like(reward))
    mean_G = zero_G.index_add(0, at_N, reward) / count_G
    std_G = (zero_G.index_add(0, at_N, (reward - mean_G[at_N]).square()) / count_G).sqrt()
    highest_G = zero_G.scatter_reduce(0, at_N, reward, "amax", include_self=False)
    lowest_G = zero_G.scatter_reduce(0, at_N, reward, "amin", include_self=False)
    largest_G = torch.maximum(highest_G.abs(), lowest_G.abs())
    constant_N = ((highest_G - lowest_G <= _SAME * largest_G) & (count_G > 1))[at_N]
    standard_N = ((reward - mean_G[at_N]) / (std_G[at_N] + eps)).masked_fill(constant_N, 0.0)
    advantage_N = torch.where(count_G[at_N] == 1, reward, standard_N)
    dtype = reward_N.dtype if reward_N.is_floating_point() else torch.get_default_dtype()
    return advantage_N.to(dtype), ~constant_N


def _check(reward_N: Tensor, keys: dict[str, Tensor], eps: float) -> None:
    if reward_N.dim() != 1:
        raise ValueError(f"reward_N must have shape [N], not {list(reward_N.shape)}.")
    for name, key_N in keys.items():
        if key_N.shape != reward_N.shape:
            raise ValueError(
                f"{name} has shape {list(key_N.shape)}, but reward_N has {list(reward_N.shape)}."
            )
        if key_N.is_floating_point():
            raise ValueError(f"{name} must hold whole numbers, not {key_N.dtype}.")
    if not bool(reward_N.isfinite().all()):
        raise ValueError("reward_N must be finite: leave out what has no reward.")
    if not eps >= 0:
        raise ValueError(f"eps must not be negative, but is {eps}.")
