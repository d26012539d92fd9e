"""Rewards of agents that act in an environment: an outcome with step votes, standardised within groups."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def process_reward(outcome_N: Tensor, vote_NM: Tensor) -> Tensor:
    """R = outcome + mean of the step's valid votes; the outcome alone when no vote is valid (NaN).

    Source: arXiv 2603.10165, general agents (outcome +-1, votes +-1, a mean and not a majority).
    Shapes: outcome_N [N], one of N steps; vote_NM [N, M], NaN for an invalid vote. Errors: ValueError on other shapes.
    """
    if outcome_N.dim() != 1 or vote_NM.dim() != 2 or len(vote_NM) != len(outcome_N):
        raise ValueError(f"Shapes {list(outcome_N.shape)} and {list(vote_NM.shape)}: give [N] and [N, M].")
    return outcome_N + vote_NM.nanmean(dim=1).nan_to_num(0.0)


def group_advantage(
    reward_N: Tensor, group_N: Tensor, step_N: Tensor | None = None, *, eps: float = 1e-6
) -> tuple[Tensor, Tensor]:
    """(A, kept): rewards standardised within their group, or within (group, step index).

    Equation: A = (R - mean) / (std + eps), population std. A group of one keeps its raw reward. A constant
    group of more
        gives A = 0 and kept False: it says nothing about which was better.
    Source: GRPO (arXiv 2402.03300); by step index as in arXiv 2603.10165, general agents.
    Shapes: all [N], group_N and step_N of whole numbers; returns A [N] and kept bool [N].
    Errors: ValueError on other shapes.
    """
    if reward_N.dim() != 1 or group_N.shape != reward_N.shape:
        raise ValueError(f"Shapes {list(reward_N.shape)} and {list(group_N.shape)}: both must be [N].")
    if step_N is not None and step_N.shape != reward_N.shape:
        raise ValueError(f"step_N has shape {list(step_N.shape)}, not {list(reward_N.shape)}.")
    keys = group_N[:, None] if step_N is None else torch.stack([group_N, step_N], dim=1)
    unique: Any = torch.unique
    _, index_N, count_G = unique(keys, dim=0, return_inverse=True, return_counts=True)
    zero_G = reward_N.new_zeros(len(count_G))
    mean_N = (zero_G.index_add(0, index_N, reward_N) / count_G)[index_N]
    variance_N = (zero_G.index_add(0, index_N, (reward_N - mean_N).square()) / count_G)[index_N]
    alone_N = count_G[index_N] == 1
    constant_N = ~alone_N & (variance_N <= 1e-12)
    standard_N = (reward_N - mean_N) / (variance_N.sqrt() + eps)
    advantage_N = torch.where(
        alone_N, reward_N, torch.where(constant_N, torch.zeros_like(reward_N), standard_N)
    )
    return advantage_N, ~constant_N
