"""How well each judge reads the labelled next states: accuracy, abstention, AUC, by margin and by language and source.

    python bench/judges.py --votes 3 --split dev --split held

`dev` is the development table: the bias and the default margin were chosen on it. `held` was looked at once.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np
import torch

from stereorl.config import ModelConfig
from stereorl.data import Message, NextState, Sampling, Turn
from stereorl.data.signal import Reward
from stereorl.policy.adapters import attach
from stereorl.policy.load import load
from stereorl.signals import base_judge
from stereorl.signals.judge import decide
from stereorl.signals.rules import rule_votes
from tests.signals.table import Case
from tests.signals.table import load as table

MARGINS = (0.0, 0.1, 0.2, 0.3, 0.5)
LABELS: tuple[Reward, ...] = (1, -1, 0)


def turn(case: Case) -> Turn:
    none = np.zeros(0, np.int32)
    return Turn(
        turn_id="t", session_id="s", index=0, kind="main", messages=(Message("user", case.request),),
        reply=case.reply, prompt_ids=none, response_ids=none, log_probs=np.zeros(0, np.float32), versions=none,
        sampling=Sampling(), finish_reason="stop", model="m", created_at=0.0,
    )  # fmt: skip


def group(case: Case) -> str:
    if case.tool is not None:
        return "environment"
    return "user zh" if any("\u4e00" <= char <= "\u9fff" for char in case.text) else "user en"


def auc(scores: np.ndarray, labels: np.ndarray) -> float:
    """Chance that a +1 scores above a -1."""
    good, bad = scores[labels == 1][:, None], scores[labels == -1][None]
    return float((good > bad).mean() + 0.5 * (good == bad).mean())


def measured(
    cases: list[Case], votes: list[list[dict[Reward, float]]], bias: dict[Reward, float]
) -> dict[str, Any]:
    labels = np.array([case.label for case in cases])
    lead = np.array([np.mean([v[1] - v[-1] for v in row]) for row in votes])
    groups = np.array([group(case) for case in cases])
    out: dict[str, Any] = {
        "n": len(cases),
        "auc": round(auc(lead, labels), 3),
        "auc by group": {
            name: round(auc(lead[groups == name], labels[groups == name]), 3) for name in sorted(set(groups))
        },
        "margins": [],
    }
    rules = [decide(rule_votes((Message("user", c.request),), c.reply, c.next_state)).reward for c in cases]
    for margin in MARGINS:
        told = [decide([base_judge.read(v, bias, margin) for v in row]).reward for row in votes]
        both = [a if a is not None else b for a, b in zip(rules, told, strict=True)]
        out["margins"].append(
            {"margin": margin, "base": line(told, labels), "rules, base": line(both, labels)}
        )
    out["rules"] = line(rules, labels)
    return out


def line(told: list[Reward | None], labels: np.ndarray) -> dict[str, float]:
    """`accuracy`: of the verdicts given; `pm`: of those on +1 and -1 labels; `abstained`: of all."""
    pairs = [(t, y) for t, y in zip(told, labels, strict=True) if t is not None]
    decided = [(t, y) for t, y in pairs if y != 0]
    return {
        "accuracy": round(float(np.mean([t == y for t, y in pairs])), 3) if pairs else float("nan"),
        "pm": round(float(np.mean([t == y for t, y in decided])), 3) if decided else float("nan"),
        "abstained": round(1 - len(pairs) / len(labels), 3),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--split", action="append", choices=["dev", "held", "hard"])
    parser.add_argument("--votes", type=int, default=3)
    parser.add_argument("--model", default="embedded")
    parser.add_argument("--log-probs", type=Path, help="write every vote's log-probs to this file")
    args = parser.parse_args()
    torch.set_num_threads(1)
    loaded = load(ModelConfig(name=args.model))
    judge = base_judge.BaseJudge(
        attach(loaded, kind="lora", r=1), loaded, threading.RLock(), votes=args.votes
    )
    kept: dict[str, Any] = {}
    for split in args.split or ["dev", "held"]:
        cases, begun = table(split), time.process_time()
        states: list[NextState] = [case.next_state for case in cases]
        found = [judge.log_probs(turn(case), state) for case, state in zip(cases, states, strict=True)]
        spent = (time.process_time() - begun) / len(cases)
        assert all(None not in row for row in found), "every case of the tables fits the context"
        votes = [[v for v in row if v is not None] for row in found]
        kept[split] = [[[v[label] for label in LABELS] for v in row] for row in votes]
        for m in sorted({1, args.votes}):
            result = measured(cases, [row[:m] for row in votes], dict(base_judge.BIAS))
            print(json.dumps({"split": split, "votes": m, **result}), flush=True)
        print(json.dumps({"split": split, "cpu_seconds_per_case": round(spent, 2)}), flush=True)
    if args.log_probs:
        args.log_probs.write_text(json.dumps(kept), encoding="utf-8")


if __name__ == "__main__":
    main()
