"""Returns and advantages over time steps, for control."""

from __future__ import annotations

import torch
from torch import Tensor


def gae(
    reward_TN: Tensor,
    value_TN: Tensor,
    next_value_TN: Tensor,
    terminated_TN: Tensor,
    truncated_TN: Tensor,
    *,
    gamma: float = 0.99,
    lam: float = 0.95,
) -> tuple[Tensor, Tensor]:
    """Generalised advantage estimation with right bootstrapping: (advantage_TN, return_TN), detached.

    Equation: delta_t = r_t + gamma * (1 - terminated_t) * V(s'_t) - V(s_t);
        A_t = delta_t + gamma * lam * (1 - terminated_t) * (1 - truncated_t) * A_{t+1}; return = A + V.
    Source: Schulman et al. 2016 (arXiv 1506.02438); a time limit is not an end (Pardo et al. 2018, arXiv 1712.00378).
    Shapes: all [T, N], T steps of N environments; the flags bool. next_value_TN is V of the state that the
        step led to: at a truncation that of the final observation, not of the reset one. The last step
        bootstraps by it. After a termination it is not read, whatever it holds (also NaN).
    Errors: ValueError on other shapes, flags that are not bool, gamma or lam outside [0, 1].

    lam = 0: the TD error. lam = 1: discounted return minus value. Both flags at once count as terminated.
    """
    _check(
        {"reward_TN": reward_TN, "value_TN": value_TN, "next_value_TN": next_value_TN},
        {"terminated_TN": terminated_TN, "truncated_TN": truncated_TN},
    )
    if not (0 <= gamma <= 1 and 0 <= lam <= 1):
        raise ValueError(f"gamma and lam must lie in [0, 1], not {gamma} and {lam}.")
    value_TN, next_value_TN = value_TN.detach(), next_value_TN.detach()
    bootstrap_TN = next_value_TN.masked_fill(terminated_TN, 0.0)
    delta_TN = reward_TN + gamma * bootstrap_TN - value_TN
    ended_TN = terminated_TN | truncated_TN
    advantage_TN = torch.empty_like(delta_TN)
    later_N = delta_TN.new_zeros(delta_TN.shape[1])
    for t in reversed(range(len(delta_TN))):
        later_N = delta_TN[t] + gamma * lam * later_N.masked_fill(ended_TN[t], 0.0)
        advantage_TN[t] = later_N
    return advantage_TN, advantage_TN + value_TN


def _check(values: dict[str, Tensor], flags: dict[str, Tensor]) -> None:
    shape = list(values["reward_TN"].shape)
    for name, tensor in {**values, **flags}.items():
        if tensor.dim() != 2 or list(tensor.shape) != shape:
            raise ValueError(f"{name} must have shape [T, N], here {shape}, not {list(tensor.shape)}.")
    for name, flag in flags.items():
        if flag.dtype != torch.bool:
            raise ValueError(f"{name} must be boolean, not {flag.dtype}.")
