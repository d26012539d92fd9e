"""A language model of 30 thousand weights with a vocabulary of 64 ids, and turns sampled from nowhere."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import torch

from stereorl.config import LearnConfig, ObjectiveConfig, WeightsConfig
from stereorl.data import Message, Sample, Sampling, Turn
from stereorl.learn.step import Trainer
from stereorl.policy.adapters import attach
from stereorl.policy.load import Loaded
from stereorl.policy.score import response_log_probs

VOCABULARY = 64
_ids = itertools.count()


def tiny_loaded(seed: int = 0) -> Loaded:
    from transformers import LlamaConfig, LlamaForCausalLM

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = LlamaForCausalLM(
            LlamaConfig(
                vocab_size=VOCABULARY,
                hidden_size=32,
                intermediate_size=48,
                num_hidden_layers=2,
                num_attention_heads=2,
                num_key_value_heads=2,
                max_position_embeddings=256,
                tie_word_embeddings=True,
            )
        )
    model = model.eval().requires_grad_(False)
    return Loaded(
        model=model,
        tokenizer=None,
        name="tiny",
        digest="tiny",
        context_length=256,
        device=torch.device("cpu"),
        folder=Path("tiny"),
        eos_ids=frozenset({1}),
    )


def tiny_trainer(**settings) -> Trainer:
    """Settings of the sections learn, objective and weights, whose names do not overlap; `teacher` too."""
    given = {"lr": 1e-2, "lora_r": 4, "lora_alpha": 8, "kl_coef": 0.0, **settings}
    teacher = given.pop("teacher", None)
    sections = [
        kind(**{k: given.pop(k) for k in list(given) if k in kind.model_fields})
        for kind in (LearnConfig, ObjectiveConfig, WeightsConfig)
    ]
    assert not given, f"no such setting: {sorted(given)}"
    config = sections[0]
    model = attach(
        tiny_loaded(), kind=config.adapter, r=config.lora_r, alpha=config.lora_alpha, seed=config.seed
    )
    return Trainer(model, *sections, teacher=teacher)


def make_turn(prompt, response, *, log_probs=None, version=0, temperature=0.7, turn_id=None, **given) -> Turn:
    n = len(response)
    return Turn(
        **{
            "turn_id": turn_id or f"t{next(_ids):05d}",
            "session_id": "s",
            "index": 0,
            "kind": "main",
            "messages": (Message("user", "hello"),),
            "reply": Message("assistant", "hi"),
            "prompt_ids": np.asarray(prompt, np.int32),
            "response_ids": np.asarray(response, np.int32),
            "log_probs": np.full(n, -3.0, np.float32)
            if log_probs is None
            else np.asarray(log_probs, np.float32),
            "versions": np.full(n, version, np.int32),
            "sampling": Sampling(temperature=temperature),
            "finish_reason": "stop",
            "model": "tiny",
            "created_at": 0.0,
            **given,
        }
    )


def make_sample(seed, *, reward=None, teacher=False, p=6, r=5, **given) -> Sample:
    """Random ids of `p` + `r` tokens; `teacher` True: random teacher log-probs."""
    rng = np.random.default_rng(seed)
    turn = make_turn(rng.integers(2, VOCABULARY, p), rng.integers(2, VOCABULARY, r), **given)
    scores = -rng.random(r).astype(np.float32) * 6 if teacher else None
    return Sample(turn=turn, reward=reward, hint="shorter" if teacher else None, teacher_log_probs=scores)


def mixed() -> list[Sample]:
    """Both signals, each alone, a reward of 0, unequal lengths and temperatures."""
    return [
        make_sample(1, reward=1.0, teacher=True, p=7, r=9),
        make_sample(2, reward=-1.0, p=12, r=3, temperature=1.0),
        make_sample(3, teacher=True, p=4, r=6, version=2),
        make_sample(4, reward=0.0, teacher=True, p=9, r=1),
        make_sample(5, reward=-1.0, p=5, r=11),
    ]


def on_policy(model, sample: Sample) -> Sample:
    """The same sample with behaviour log-probs that are the model's own."""
    from dataclasses import replace

    return replace(sample, turn=replace(sample.turn, log_probs=log_probs(model, sample).numpy()))


@torch.no_grad()
def log_probs(model, sample: Sample) -> torch.Tensor:
    turn = sample.turn
    logp, _ = response_log_probs(
        model, [turn.prompt_ids], [turn.response_ids], temperature=turn.sampling.score_temperature
    )
    return logp[0]


def weights(trainer: Trainer) -> list[torch.Tensor]:
    return [p.detach().clone() for p in trainer.parameters]


def same(left, right) -> bool:
    return all(torch.equal(a, b) for a, b in zip(left, right, strict=True))
