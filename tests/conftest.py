"""Fixtures shared by all tests. Models are loaded once per session; what is mutated gets a copy of its own."""

from __future__ import annotations

import os

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


@pytest.fixture(scope="session")
def loaded() -> Any:
    """The embedded model, plain. Do not attach to it or change it: see `fresh_loaded`."""
    from stereorl.config import ModelConfig
    from stereorl.policy.load import load

    return load(ModelConfig())


@pytest.fixture
def fresh_loaded() -> Any:
    """The embedded model again, for a test that attaches an adapter to it."""
    from stereorl.config import ModelConfig
    from stereorl.policy.load import load

    return load(ModelConfig())


@pytest.fixture(scope="session")
def renderer(loaded: Any) -> Any:
    from stereorl.policy.render import Renderer

    return Renderer(loaded.tokenizer, loaded.context_length, loaded.eos_ids)


@pytest.fixture(scope="session")
def engine(loaded: Any) -> Iterator[Any]:
    """The embedded model served. Shared: a test that swaps versions makes its own engine."""
    import asyncio

    from stereorl.config import EngineConfig
    from stereorl.policy.torch_engine import TorchEngine

    made = TorchEngine(loaded, EngineConfig(cache_tokens=8192))
    yield made
    asyncio.run(made.close())


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random two-layer Llama with a byte-level tokenizer: everything an engine needs, in milliseconds."""
    import torch
    import transformers
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    folder = tmp_path_factory.mktemp("tiny")
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    bpe = Tokenizer(models.BPE(vocab={letter: i for i, letter in enumerate(letters)}, merges=[]))
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    bpe.add_special_tokens(["<|im_start|>", "<|im_end|>"])
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=bpe, eos_token="<|im_end|>")
    tokenizer.chat_template = CHATML
    tokenizer.save_pretrained(folder)
    config = transformers.LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=48,
        intermediate_size=112,
        num_hidden_layers=2,
        num_attention_heads=6,
        num_key_value_heads=2,
        max_position_embeddings=512,
        initializer_range=0.2,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
    )
    torch.manual_seed(0)
    transformers.LlamaForCausalLM(config).save_pretrained(folder)
    return folder


@pytest.fixture
def tiny(tiny_folder: Path) -> Any:
    """The tiny model, freshly loaded."""
    from stereorl.config import ModelConfig
    from stereorl.policy.load import load

    return load(ModelConfig(name=str(tiny_folder)))


@pytest.fixture
def save_adapter() -> Callable[..., Path]:
    """`save_adapter(loaded, folder, seed=0, size=0.05)` writes a LoRA version with a random, nonzero B."""

    def save(loaded: Any, folder: Path, *, seed: int = 0, size: float = 0.05) -> Path:
        import torch

        from stereorl.policy import adapters

        model = adapters.attach(loaded, kind="lora", r=4, alpha=8, seed=seed)
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for name, param in model.named_parameters():
                if "lora_B" in name:
                    param.copy_(torch.randn(param.shape, generator=generator) * size)
        adapters.save(model, folder)
        return folder

    return save
