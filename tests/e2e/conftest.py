"""A tiny random model with the embedded model's tokenizer, so that processes start in seconds."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.processes import Home


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    from stereorl.config import ModelConfig
    from stereorl.policy.load import load

    loaded = load(ModelConfig(), with_model=False)
    torch.manual_seed(0)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(loaded.tokenizer),
            hidden_size=64,
            intermediate_size=128,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=1024,
            tie_word_embeddings=True,
            eos_token_id=loaded.tokenizer.eos_token_id,
            bos_token_id=None,
            pad_token_id=None,
        )
    )
    folder = tmp_path_factory.mktemp("tiny-model")
    model.save_pretrained(folder)
    loaded.tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture
def home(tmp_path: Path, tiny_model: Path) -> Home:
    settings = {
        "model.name": str(tiny_model),
        "serve.port": 0,
        "engine.threads": 1,
        "learn.threads": 1,
        "learn.batch_size": 2,
        "learn.max_wait_s": 1,
        "learn.max_staleness": 1000,
        "gate.retention_prompts": 2,
    }
    return Home(tmp_path, settings)
