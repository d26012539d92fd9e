"""Statistics of an update for the store, `metrics.jsonl` and the log; and the file they are written to."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from stereorl.core import entropy_estimate, masked_mean, spread
from stereorl.data import Sample


class Tokens:
    """A batch's per-token values, gathered from its micro-batches; a later pass replaces an earlier."""

    def __init__(self, mask_BT: Tensor):
        self.mask_BT = mask_BT
        self.values: dict[str, Tensor] = {}

    def add(self, rows: Sequence[int], values: Mapping[str, Tensor]) -> None:
        index = torch.as_tensor(rows, device=self.mask_BT.device)
        for name, value_bt in values.items():
            if name not in self.values:
                self.values[name] = torch.zeros(
                    self.mask_BT.shape, dtype=value_bt.dtype, device=value_bt.device
                )
            self.values[name][index, : value_bt.shape[1]] = value_bt

    def mean(self, name: str, mask_BT: Tensor | None = None) -> float | None:
        if name not in self.values:
            return None
        return masked_mean(self.values[name], self.mask_BT if mask_BT is None else mask_BT)

    def spread(self, name: str, mask_BT: Tensor | None = None) -> dict[str, float]:
        if name not in self.values:
            return {}
        return spread(self.values[name], self.mask_BT if mask_BT is None else mask_BT)


def describe(
    samples: Sequence[Sample], tokens: Tokens, logp_old_BT: Tensor, *, version: int
) -> dict[str, Any]:
    """Counts, signals, sizes and ages of a batch. A statistic without a basis is absent, not 0."""
    mask_BT = tokens.mask_BT
    teacher_B = torch.tensor([s.has_teacher for s in samples], device=mask_BT.device)
    taught_BT = mask_BT & teacher_B[:, None]
    gap = tokens.spread("raw_gap", taught_BT)
    importance = tokens.spread("importance")
    advantage = tokens.spread("advantage")
    rewards = [float(s.reward) for s in samples if s.reward is not None]
    lengths = [len(s.turn.response_ids) for s in samples]
    staleness = [max(version - s.oldest_version, 0) for s in samples]
    out = {
        "n": len(samples),
        "n_reward": len(rewards),
        "n_teacher": int(teacher_B.sum()),
        "n_both": sum(s.has_reward and s.has_teacher for s in samples),
        "n_replayed": sum(s.replayed for s in samples),
        "n_truncated_sampling": sum(s.turn.sampling.truncated for s in samples),
        "tokens": int(mask_BT.sum()),
        "reward_mean": float(np.mean(rewards)) if rewards else None,
        "gap_mean": gap.get("mean"),
        "gap_p95": gap.get("p95"),
        "gap_max": gap.get("max"),
        "divergence": tokens.mean("divergence", taught_BT),
        "advantage_mean": advantage.get("mean"),
        "advantage_max": advantage.get("max"),
        "kl": tokens.mean("kl"),
        "clip_fraction": tokens.mean("clipped"),
        "support_clip_fraction": tokens.mean("support_clipped", taught_BT),
        "ratio_mean": tokens.mean("ratio"),
        "importance_mean": importance.get("mean"),
        "importance_max": importance.get("max"),
        "entropy": entropy_estimate(logp_old_BT, mask_BT),
        "reply_length": float(np.mean(lengths)),
        "staleness_mean": float(np.mean(staleness)),
        "staleness_max": max(staleness),
        "by_version": by_version(samples),
    }
    return {name: value for name, value in out.items() if value is not None}


def by_version(samples: Sequence[Sample]) -> dict[str, dict[str, float]]:
    """Per version that sampled a reply's last token: how many replies, and their mean reward if known."""
    counts: Counter[int] = Counter()
    rewards: dict[int, list[float]] = {}
    for sample in samples:
        version = int(sample.turn.versions[-1])
        counts[version] += 1
        if sample.reward is not None:
            rewards.setdefault(version, []).append(sample.reward)
    return {
        str(v): {"n": n, **({"reward": float(np.mean(rewards[v]))} if v in rewards else {})}
        for v, n in sorted(counts.items())
    }


def plain(value: Any) -> Any:
    """`value` as strict JSON allows it: numbers that are not finite become null."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [plain(v) for v in value]
    return value


def append_line(path: Path, record: Mapping[str, Any]) -> None:
    """Add one JSON line to `path`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as handle:
        handle.write(json.dumps(plain(record), ensure_ascii=False, allow_nan=False) + "\n")


def progress_line(record: Mapping[str, Any]) -> str:
    """One line for the log about a step and its outcome."""
    end = {"published": f"version {record['version']}", "rejected": "rejected", "abandoned": "abandoned"}
    parts = [f"step {record['step_id']} -> {end[record['outcome']]}"]
    if "n" in record:
        kinds = f"{record.get('n_reward', 0)} rewards, {record.get('n_teacher', 0)} hints"
        parts.append(f"{record['n']} samples ({kinds})")
    shown = {
        "reward_mean": "reward {:+.2f}",
        "gap_mean": "gap {:+.3f}",
        "gate_kl": "kl {:.3f}",
        "retention_drop": "retention drop {:+.3f}",
        "grad_norm": "grad {:.2f}",
        "seconds": "{:.1f} s",
    }
    parts += [text.format(record[name]) for name, text in shown.items() if name in record]
    return ", ".join([*parts, *record.get("gate", [])])
