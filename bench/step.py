"""One fused training step against the same step with logits at every position: time and peak memory.

python bench/step.py ours|full|plain     one of them alone, as a line of JSON (each needs its own process: peak memory)
"""

# ruff: noqa: N815 - shapes live in names

from __future__ import annotations

import json
import resource
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass
from typing import Any

from rows import Row

SAMPLES, PROMPT, RESPONSE, STEPS, ROUNDS = 4, 384, 128, 3, 2
KINDS = ("ours", "plain", "full")  # plain: one backward pass for all terms, as the full way has


def main() -> None:
    if len(sys.argv) > 1:
        print(json.dumps(measure(sys.argv[1])))
        return
    seen: dict[str, list[dict[str, float]]] = {kind: [] for kind in KINDS}
    for number in range(ROUNDS):
        for kind in KINDS if number % 2 == 0 else KINDS[::-1]:
            out = subprocess.run([sys.executable, __file__, kind], capture_output=True, text=True, check=True)
            seen[kind].append(json.loads(out.stdout.splitlines()[-1]))

    def row(name: str, key: str, unit: str, *, kinds: tuple[str, str] = ("plain", "full")) -> Row:
        ours, other = (statistics.median(run[key] for run in seen[kind]) for kind in kinds)
        return Row(
            name,
            ours,
            other,
            unit,
            "lower",
            f"{SAMPLES} x {PROMPT + RESPONSE} tokens, {RESPONSE} of response",
        )

    rows = [
        row("fused step, against logits at all positions: time", "seconds", "s"),
        row("fused step, against logits at all positions: peak memory", "peak_gb", "GB"),
        row("fused step, against logits at all positions: memory above the loaded model", "extra_gb", "GB"),
        row(
            "each term's gradient measured, against one backward pass",
            "seconds",
            "s",
            kinds=("ours", "plain"),
        ),
    ]
    print(json.dumps([r.as_dict() for r in rows]))


def measure(kind: str) -> dict[str, float]:
    import torch

    from stereorl.config import LearnConfig, ModelConfig, ObjectiveConfig
    from stereorl.learn.step import Trainer
    from stereorl.policy.adapters import attach
    from stereorl.policy.load import load

    @dataclass
    class Whole:
        """What a pass is asked for, with logits at every position behind it."""

        hidden_NH: Any
        logp_BR: Any

        def log_probs(self) -> Any:
            return self.logp_BR

    class FullLogits(Trainer):
        """The usual way: the causal LM's own forward, log-softmax everywhere, then gather."""

        def positions(self, batch: Any, rows: Any) -> Any:
            ids = torch.stack(
                [torch.as_tensor([*batch.prompts[r], *batch.responses[r]]) for r in rows]
            ).long()
            logits = self.model(input_ids=ids, use_cache=False).logits.float()
            logp = torch.log_softmax(logits / batch.temperature_B[list(rows)][:, None, None], dim=-1)
            logp = logp[:, :-1].gather(2, ids[:, 1:, None]).squeeze(2)
            return Whole(logits, logp[:, PROMPT - 1 :])

    loaded = load(ModelConfig())
    model = attach(loaded, kind="lora")
    objective = ObjectiveConfig(term_gradients=kind == "ours")
    trainer = (FullLogits if kind == "full" else Trainer)(model, LearnConfig(), objective)
    samples = [sample(number) for number in range(SAMPLES)]
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    times = []
    for _ in range(STEPS):
        began = time.perf_counter()
        assert trainer.step(samples).applied
        times.append(time.perf_counter() - began)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {"seconds": min(times), "peak_gb": peak / 1e6, "extra_gb": (peak - before) / 1e6}


def sample(number: int) -> Any:
    import numpy as np

    from stereorl.data import Message, Sample, Sampling, Turn

    rng = np.random.default_rng(number)
    turn = Turn(
        turn_id=f"t{number}",
        session_id="s",
        index=0,
        kind="main",
        messages=(Message("user", "x"),),
        reply=Message("assistant", "y"),
        prompt_ids=rng.integers(3, 49000, PROMPT).astype(np.int32),
        response_ids=rng.integers(3, 49000, RESPONSE).astype(np.int32),
        log_probs=np.full(RESPONSE, -10, np.float32),
        versions=np.zeros(RESPONSE, np.int32),
        sampling=Sampling(temperature=0.6),
        finish_reason="length",
        model="m",
        created_at=0.0,
    )
    reward = 1.0 if number % 2 else -1.0
    return Sample(turn=turn, reward=reward, hint="h", teacher_log_probs=np.full(RESPONSE, -9.5, np.float32))


if __name__ == "__main__":
    main()
