"""Peak memory of log-probs through the head: a long reply over a large vocabulary, against logits held whole."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

MEASURE = """
import json, resource, sys
import torch
from stereorl.policy.head import Head

torch.set_num_threads(1)
way, tokens, width, vocabulary = sys.argv[1], *map(int, sys.argv[2:])
generator = torch.Generator().manual_seed(0)
linear = torch.nn.Linear(width, vocabulary, bias=False).requires_grad_(False)
with torch.no_grad():
    linear.weight.normal_(0, 0.1, generator=generator)  # larger logits cost the full way its digits, not ours
hidden_NH = torch.randn(tokens, width, generator=generator).requires_grad_()
ids_N = torch.randint(0, vocabulary, (tokens,), generator=generator)
temperature_N = torch.full((tokens,), 0.6)
torch.randn(64, 64) @ torch.randn(64, 64)  # what the library itself takes on first use
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
if way == "ours":
    logp_N = Head(lambda: None, linear).log_probs(hidden_NH, ids_N, temperature_N)
else:
    logp_N = (linear(hidden_NH) / 0.6).log_softmax(1).gather(1, ids_N[:, None]).squeeze(1)
logp_N.sum().backward()
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
print(json.dumps({"peak_kb": peak, "logp": logp_N[::64].tolist(), "grad": hidden_NH.grad[::256].tolist()}))
"""


def measure(way: str, *sizes: int) -> dict:
    arguments = [sys.executable, "-c", MEASURE, way, *map(str, sizes)]
    ran = subprocess.run(arguments, capture_output=True, text=True, check=True, timeout=250)
    return json.loads(ran.stdout)


def test_a_long_reply_over_a_large_vocabulary_takes_less_than_a_quarter_of_the_memory():
    """2,048 tokens over 262,144 words, forward and backward; the same values to 1e-5. (Each way in its own process.)"""
    ours, full = (measure(way, 2048, 32, 262_144) for way in ("ours", "full"))
    print(f"peak above the start: {ours['peak_kb'] / 1e6:.2f} GB against {full['peak_kb'] / 1e6:.2f} GB")
    assert ours["logp"] == pytest.approx(full["logp"], abs=1e-5)
    for mine, other in zip(ours["grad"], full["grad"], strict=True):
        assert mine == pytest.approx(other, abs=1e-5)
    assert ours["peak_kb"] < 0.25 * full["peak_kb"]
