"""The one-file recipe: short, runs on the embedded model, and learns with every fusion and estimator."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import math
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from stereorl.errors import ConfigError

FILE = Path(__file__).parent.parent.parent / "examples" / "online_loop.py"
QUICK = ["--rounds", "2", "--prompts", "3", "--heldout", "1", "--tokens", "8"]


@pytest.fixture(scope="module")
def example():
    spec = importlib.util.spec_from_file_location("online_loop", FILE)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


@pytest.fixture(autouse=True)
def one_thread():
    torch.set_num_threads(1)


def rows_of(printed: str) -> list[list[str]]:
    """The table's cells, the head first."""
    return [line.split() for line in printed.split("\n\n")[0].splitlines()]


def test_it_is_one_file_of_less_than_250_lines():
    text = FILE.read_text(encoding="utf-8")
    assert len(text.splitlines()) < 250
    assert "from stereorl.core import" in text


@pytest.mark.model
def test_it_runs_on_the_embedded_model(example):
    with contextlib.redirect_stdout(io.StringIO()) as out:
        result = example.main(["--rounds", "2", "--prompts", "2", "--heldout", "1", "--tokens", "12"])
    head, *rows = rows_of(out.getvalue())
    assert head == ["round", "kept", "reward", "hints", "gap", "kl", "|eval|", "|dir|", "cos"]
    assert len(rows) == 2
    assert all(
        math.isfinite(float(cell)) for row in rows for cell in row
    )  # cut off at 12 tokens: all are hinted
    first, second = (dict(zip(head, map(float, row), strict=True)) for row in rows)
    assert (first["kept"], first["reward"], first["hints"]) == (0, -1, 1)
    assert abs(first["kl"]) < 1e-6 < second["kl"]  # the reference is where it began
    assert -1 <= first["cos"] <= 1
    assert result["moved"] > 0
    assert "before: " in out.getvalue()


@pytest.mark.parametrize("estimator", ["sampled", "topk_clip", "topk_tail", "full"])
@pytest.mark.parametrize("fusion", ["advantage_sum", "loss_sum", "topk", "route"])
def test_every_fusion_and_estimator_moves_the_weights(example, tiny_folder, fusion, estimator):
    given = ["--model", str(tiny_folder), "--fusion", fusion, "--estimator", estimator, "--lr", "1e-2"]
    with contextlib.redirect_stdout(io.StringIO()):
        result = example.main([*QUICK, *given])
    assert result["moved"] > 0.01
    for row in result["rows"]:
        assert all(value is None or math.isfinite(value) for value in row.values())
    assert result["rows"][0]["|dir|"] > 0


def test_nothing_moves_at_a_learning_rate_of_zero(example, tiny_folder):
    with contextlib.redirect_stdout(io.StringIO()):
        result = example.main([*QUICK, "--model", str(tiny_folder), "--lr", "0"])
    assert result["moved"] == 0
    assert [row["kl"] for row in result["rows"]] == pytest.approx([0, 0], abs=1e-6)


def test_one_signal_alone_has_the_other_at_zero(example, tiny_folder):
    with contextlib.redirect_stdout(io.StringIO()):
        reward = example.main([*QUICK, "--model", str(tiny_folder), "--w-dir", "0"])["rows"][0]
        hint = example.main([*QUICK, "--model", str(tiny_folder), "--w-eval", "0"])["rows"][0]
    assert (reward["|dir|"], reward["cos"], hint["|eval|"]) == (0, None, 0)
    assert min(reward["|eval|"], hint["|dir|"]) > 0


def test_a_seed_fixes_the_run(example, tiny_folder):
    def run(seed: int) -> list[dict[str, float | None]]:
        with contextlib.redirect_stdout(io.StringIO()):
            given = ["--model", str(tiny_folder), "--seed", str(seed)]
            return example.main([*QUICK, *given])["rows"]

    assert run(1) == run(1) != run(2)


def test_replies_are_what_was_sampled(example, tiny_folder):
    """Ids end with the first end token, and their recorded log-probs are those that training computes."""
    args = example.parse(["--model", str(tiny_folder), "--tokens", "6", "--temperature", "0.8"])
    agent = example.agent_of(args)
    torch.manual_seed(0)
    turns = example.sample(agent, ["Hi?", "How long may a question be before it is no longer one?"])
    for turn in turns:
        with torch.no_grad():
            positions = example.Positions.of(
                agent.model, [turn.prompt_ids], [turn.response_ids], temperature=0.8
            )
        np.testing.assert_allclose(positions.log_probs()[0].numpy(), turn.log_probs, atol=1e-4)
        ended = [int(i) in agent.renderer.eos_ids for i in turn.response_ids]
        assert not any(ended[:-1])
        assert turn.finish_reason == ("stop" if ended[-1] else "length")


def test_a_fusion_that_is_none_is_refused_with_the_nearest(example, tiny_folder, capsys):
    with pytest.raises((ConfigError, ValueError), match="did you mean loss_sum"):
        example.main([*QUICK, "--model", str(tiny_folder), "--fusion", "los_sum"])


def test_help_teaches(example, capsys):
    with pytest.raises(SystemExit):
        example.parse(["--help"])
    text = capsys.readouterr().out
    assert "The whole method in one file" in text
    assert all(name in text for name in ("advantage_sum", "topk_tail", "complementary", "--w-dir"))
