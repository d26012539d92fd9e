"""What an estimator reads beside the sampled tokens: both sides' K likeliest entries, or their whole distributions.

Built per micro-batch from two forward passes, the teacher's (under the hint, without gradient) and the policy's. Old
log-probs and the choice of entries are made in the first pass over a batch and kept for the later ones.
"""

# ruff: noqa: N815 - shapes live in names

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from stereorl.core import Needs, Support
from stereorl.data import Sample
from stereorl.learn.batch import Batch
from stereorl.policy.score import Positions
from stereorl.signals.teacher import DistributionTeacher


@dataclass(slots=True, eq=False)
class _Kept:
    """A micro-batch's fixed side: [N, K] over the response tokens of its taught rows, in order."""

    ids_NK: Tensor
    logp_old_NK: Tensor
    logp_teacher_NK: Tensor
    mask_NK: Tensor


class Distributions:
    """Over one batch. `teacher` may be absent where the recorded entries suffice (support "teacher")."""

    def __init__(
        self, needs: Needs, teacher: DistributionTeacher | None, samples: Sequence[Sample], batch: Batch
    ):
        self._needs = needs
        self._teacher = teacher
        self._samples = samples
        self._batch = batch
        self._kept: dict[tuple[int, ...], _Kept] = {}

    @property
    def asks(self) -> bool:
        """Whether a teacher's forward pass is needed at the step."""
        return asks_teacher(self._needs)

    def teach(self, rows: Sequence[int]) -> Positions | None:
        """The teacher's pass over the taught rows among `rows`; None when there is none, or nothing to ask."""
        taught = self._taught(rows)
        if not self.asks or not taught:
            return None
        assert self._teacher is not None, "an estimator that asks a teacher was given none"
        return self._teacher.positions([(self._samples[r].turn, self._samples[r].hint or "") for r in taught])

    def support(self, rows: Sequence[int], policy: Positions, teacher: Positions | None) -> Support | None:
        """The K entries at each token [b, t, K] of `rows`, whose pass `policy` is; None when none are needed."""
        if not self._needs.top_k:
            return None
        taught = self._taught(rows)
        if not taught:
            shape = (*policy.mask_BR.shape, self._k(policy))
            zero = torch.zeros(shape, device=policy.mask_BR.device)
            return Support(logp_new_BTK=zero, logp_old_BTK=zero, logp_teacher_BTK=zero, mask_BTK=zero.bool())
        own = policy.rows([rows.index(row) for row in taught])
        key = tuple(rows)
        kept = self._kept.get(key)
        new_NK = None if kept is None else own.log_probs_at(kept.ids_NK)
        if kept is None:
            ids_NK, mask_NK, teacher_NK = self._choose(taught, own, teacher)
            new_NK = own.log_probs_at(ids_NK)
            kept = self._kept[key] = _Kept(ids_NK, new_NK.detach(), teacher_NK, mask_NK)
        assert new_NK is not None

        def spread(value_NK: Tensor) -> Tensor:
            return self._spread(rows, taught, own, value_NK)

        return Support(
            logp_new_BTK=spread(new_NK),
            logp_old_BTK=spread(kept.logp_old_NK),
            logp_teacher_BTK=spread(kept.logp_teacher_NK),
            mask_BTK=spread(kept.mask_NK),
        )

    def vocabulary(self, rows: Sequence[int], policy: Positions, teacher: Positions | None) -> Pair | None:
        """Both sides over the whole vocabulary, for `rows`; None when it is not needed."""
        if not self._needs.vocabulary:
            return None
        taught = self._taught(rows)
        own = policy.rows([rows.index(row) for row in taught]) if taught else None

        def spread(value_N: Tensor) -> Tensor:
            assert own is not None
            return self._spread(rows, taught, own, value_N)

        return Pair(own, teacher, spread, policy.mask_BR)

    def _taught(self, rows: Sequence[int]) -> list[int]:
        return [row for row in rows if self._samples[row].has_teacher]

    def _k(self, positions: Positions) -> int:
        """K, or the whole vocabulary where it is smaller."""
        return min(self._needs.top_k, positions.vocabulary)

    def _choose(
        self, taught: Sequence[int], own: Positions, teacher: Positions | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """(ids, which of them count, the teacher's log-probs of them), each [N, K]."""
        k = self._k(own)
        if not self.asks:
            ids_NK, logp_NK = self._recorded(taught, k, own.hidden_NH.device)
            return ids_NK, torch.ones_like(ids_NK, dtype=torch.bool), logp_NK
        assert teacher is not None
        ids_NK, _ = own.top(k)
        mask_NK = torch.ones_like(ids_NK, dtype=torch.bool)
        if self._needs.support == "overlap":
            theirs_NK, _ = teacher.top(k)
            mask_NK = (ids_NK[:, :, None] == theirs_NK[:, None, :]).any(-1)
        with torch.no_grad():
            return ids_NK, mask_NK, teacher.log_probs_at(ids_NK)

    def _recorded(self, taught: Sequence[int], k: int, device: torch.device) -> tuple[Tensor, Tensor]:
        ids, logps = [], []
        for row in taught:
            sample = self._samples[row]
            top_ids, top_logp = sample.teacher_top_ids, sample.teacher_top_log_probs
            if top_ids is None or top_logp is None or top_ids.shape[1] < k:
                raise ValueError(
                    f"Turn {sample.turn.turn_id} was scored without the teacher's {k} likeliest ids; "
                    "use support = student, or let older turns be trained first."
                )
            ids.append(torch.from_numpy(top_ids[:, :k].astype("int64")))
            logps.append(torch.from_numpy(top_logp[:, :k].astype("float32")))
        return torch.cat(ids).to(device), torch.cat(logps).to(device)

    def _spread(self, rows: Sequence[int], taught: Sequence[int], own: Positions, value_N: Tensor) -> Tensor:
        """A value per token of the taught rows [N, ...] -> [b, t, ...] over all `rows`; elsewhere 0 or False."""
        shape = (len(rows), self._batch.width(rows), *value_N.shape[1:])
        out = torch.zeros(shape, dtype=value_N.dtype, device=value_N.device)
        part = own.by_row(value_N)
        index = torch.as_tensor([rows.index(row) for row in taught], device=value_N.device)
        padded = torch.zeros((len(taught), *shape[1:]), dtype=value_N.dtype, device=value_N.device)
        padded[:, : part.shape[1]] = part
        return out.index_copy(0, index, padded)


def asks_teacher(needs: Needs) -> bool:
    """Whether these needs take a teacher's forward pass at the step: its recorded entries do not suffice."""
    return needs.vocabulary or (needs.top_k > 0 and needs.support != "teacher")


@dataclass(frozen=True, slots=True, eq=False)
class Pair:
    """`core.Vocabulary` over two passes: a chunk of tokens at a time, so that [T, V] is never held."""

    own: Positions | None
    teacher: Positions | None
    spread: Callable[[Tensor], Tensor]
    mask_BT: Tensor

    def map(self, function: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
        if self.own is None or self.teacher is None:
            return torch.zeros(self.mask_BT.shape, device=self.mask_BT.device)
        return self.spread(self.own.map(function, self.teacher))
