"""From samples to padded tensors with masks, and from a batch to micro-batches by tokens.

Nothing is re-tokenised (invariant 1). A signal that a sample lacks is NaN under a False mask, so
that using it by mistake poisons the loss instead of training on a zero (invariant 3).
"""

# ruff: noqa: N815 - shapes live in names

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from stereorl.core import Streams, Support, Vocabulary
from stereorl.data import Sample
from stereorl.data.turn import IntArray


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Batch:
    """Right-padded by T, the longest response. `mask_BT` (bool) marks response tokens, all of which train."""

    prompts: tuple[IntArray, ...]
    responses: tuple[IntArray, ...]
    temperature_B: Tensor
    logp_behaviour_BT: Tensor
    logp_teacher_BT: Tensor
    reward_B: Tensor
    mask_BT: Tensor
    has_reward_B: Tensor
    has_teacher_B: Tensor

    def __len__(self) -> int:
        return len(self.prompts)

    @property
    def lengths(self) -> list[int]:
        """Prompt plus response, per row."""
        return [len(p) + len(r) for p, r in zip(self.prompts, self.responses, strict=True)]

    def width(self, rows: Sequence[int]) -> int:
        """The longest response among `rows`."""
        return max(len(self.responses[row]) for row in rows)

    def streams(
        self,
        rows: Sequence[int],
        *,
        logp_new_bt: Tensor,
        logp_old_BT: Tensor,
        logp_ref_BT: Tensor,
        adv_B: Tensor,
        weights_BT: Mapping[str, Tensor],
        support: Support | None = None,
        vocabulary: Vocabulary | None = None,
    ) -> Streams:
        """The streams of a micro-batch: `logp_new_bt` is its own, the other tensors are the whole batch's."""
        index = torch.as_tensor(rows, device=self.mask_BT.device)
        width = self.width(rows)

        def cut(tensor_BT: Tensor) -> Tensor:
            return tensor_BT[index, :width]

        return Streams(
            logp_new_BT=logp_new_bt,
            logp_old_BT=cut(logp_old_BT),
            logp_behaviour_BT=cut(self.logp_behaviour_BT),
            logp_ref_BT=cut(logp_ref_BT),
            logp_teacher_BT=cut(self.logp_teacher_BT),
            adv_eval_BT=adv_B[index, None].expand(len(rows), width),
            **{name: cut(weight_BT) for name, weight_BT in weights_BT.items()},
            mask_BT=cut(self.mask_BT),
            reward_B=self.reward_B[index],
            has_reward_B=self.has_reward_B[index],
            has_teacher_B=self.has_teacher_B[index],
            support=support,
            vocabulary=vocabulary,
        )


def collate(samples: Sequence[Sample], *, device: torch.device | str = "cpu") -> Batch:
    """One row per sample, in order. Raises ValueError when there are none."""
    if not samples:
        raise ValueError("A batch needs at least one sample.")
    turns = [sample.turn for sample in samples]
    width = max(len(turn.response_ids) for turn in turns)
    lengths = np.array([len(turn.response_ids) for turn in turns])
    nothing = np.zeros(0, np.float32)
    teacher = [nothing if s.teacher_log_probs is None else s.teacher_log_probs for s in samples]
    rewards = [float("nan") if s.reward is None else float(s.reward) for s in samples]
    return Batch(
        prompts=tuple(turn.prompt_ids for turn in turns),
        responses=tuple(turn.response_ids for turn in turns),
        temperature_B=torch.tensor([t.sampling.score_temperature for t in turns], device=device),
        logp_behaviour_BT=_padded([turn.log_probs for turn in turns], width, 0.0, device),
        logp_teacher_BT=_padded(teacher, width, float("nan"), device),
        reward_B=torch.tensor(rewards, device=device),
        mask_BT=torch.from_numpy(np.arange(width) < lengths[:, None]).to(device),
        has_reward_B=torch.tensor([s.has_reward for s in samples], device=device),
        has_teacher_B=torch.tensor([s.has_teacher for s in samples], device=device),
    )


def micro_batches(lengths: Sequence[int], max_tokens: int) -> list[list[int]]:
    """Rows in groups whose padded size (rows x longest) stays within `max_tokens`; a longer row goes alone.

    Rows of like length go together, longest first, and none is padded to more than 4/3 of its length: a forward
    pass costs what its padded tokens cost, a pass more costs little. Every row appears exactly once.
    """
    groups: list[list[int]] = []
    for row in sorted(range(len(lengths)), key=lambda r: (-lengths[r], r)):
        longest = lengths[groups[-1][0]] if groups else 0
        if groups and (len(groups[-1]) + 1) * longest <= max_tokens and 4 * lengths[row] >= 3 * longest:
            groups[-1].append(row)
        else:
            groups.append([row])
    return groups


def _padded(rows: Sequence[np.ndarray], width: int, fill: float, device: torch.device | str) -> Tensor:
    out = np.full((len(rows), width), fill, dtype=np.float32)
    for row, values in enumerate(rows):
        out[row, : len(values)] = values
    return torch.from_numpy(out).to(device)
