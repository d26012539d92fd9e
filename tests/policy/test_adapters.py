"""Adapters: zero at first, seeded, saved and read back, and never applied when broken."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from stereorl.errors import VersionError
from stereorl.policy import adapters

IDS = torch.tensor([[5, 6, 7, 8, 9]])
Save = Callable[..., Path]


def logits(model: Any) -> torch.Tensor:
    with torch.no_grad():
        out: torch.Tensor = model(input_ids=IDS).logits.clone()
    return out


def shake(model: Any) -> None:
    with torch.no_grad():
        for param in model.parameters():
            if param.requires_grad:
                param.add_(torch.randn_like(param) * 0.05)


@pytest.mark.parametrize("kind", ["lora", "full"])
def test_attached_model_starts_as_the_base_and_reference_stays_the_base(tiny: Any, kind: Any) -> None:
    base = logits(tiny.model)
    model = adapters.attach(tiny, kind=kind, r=4)
    assert torch.equal(logits(model), base)
    shake(model)
    moved = logits(model)
    assert not torch.allclose(moved, base, atol=1e-3)
    with adapters.reference(model) as frozen:
        assert torch.equal(logits(frozen), base)
    assert torch.equal(logits(model), moved)


def test_lora_covers_every_linear_layer_but_the_head(tiny: Any) -> None:
    linears = {n for n, m in tiny.model.named_modules() if isinstance(m, torch.nn.Linear) and n != "lm_head"}
    model = adapters.attach(tiny, kind="lora", r=4)
    trained = {
        n.split(".lora_")[0].removeprefix("base_model.model.")
        for n, p in model.named_parameters()
        if p.requires_grad
    }
    assert trained == linears


def test_the_seed_decides_and_leaves_the_global_generator_alone(tiny_folder: Path) -> None:
    from stereorl.config import ModelConfig
    from stereorl.policy.load import load

    def initial(seed: int) -> torch.Tensor:
        model = adapters.attach(load(ModelConfig(name=str(tiny_folder))), kind="lora", r=4, seed=seed)
        return next(p.detach() for n, p in model.named_parameters() if "lora_A" in n)

    state = torch.get_rng_state()
    first, again, other = initial(1), initial(1), initial(2)
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


@pytest.mark.parametrize("kind", ["lora", "full"])
def test_saved_weights_come_back_bit_for_bit(tiny: Any, tiny_folder: Path, tmp_path: Path, kind: Any) -> None:
    from stereorl.config import ModelConfig
    from stereorl.policy.load import load

    model = adapters.attach(tiny, kind=kind, r=4)
    shake(model)
    adapters.save(model, tmp_path / "v")
    other = adapters.attach(load(ModelConfig(name=str(tiny_folder))), kind=kind, r=4, seed=9)
    adapters.load_into(other, tmp_path / "v")
    assert torch.equal(logits(other), logits(model))


def test_peft_itself_reads_what_is_saved(
    tiny: Any, tiny_folder: Path, tmp_path: Path, save_adapter: Save
) -> None:
    import peft
    import transformers

    from stereorl.policy.quiet import quiet

    save_adapter(tiny, tmp_path / "v")
    plain = transformers.AutoModelForCausalLM.from_pretrained(tiny_folder)
    with quiet():
        read = peft.PeftModel.from_pretrained(plain, tmp_path / "v")
    live = logits(tiny.model)  # PEFT put its layers into it
    assert torch.allclose(logits(read), live, atol=1e-6)


def test_merged_deltas_equal_the_unmerged_forward(
    tiny: Any, tiny_folder: Path, tmp_path: Path, save_adapter: Save
) -> None:
    import transformers

    save_adapter(tiny, tmp_path / "v", size=0.2)
    plain = transformers.AutoModelForCausalLM.from_pretrained(tiny_folder)
    base = logits(plain)
    params = dict(plain.named_parameters())
    for name, delta in adapters.merged_deltas(tmp_path / "v").items():
        params[name].data = delta.merged(params[name].data)
    assert not torch.allclose(logits(plain), base, atol=1e-2)
    assert torch.allclose(logits(plain), logits(tiny.model), atol=1e-4)


def broken(folder: Path, how: str) -> None:
    weights, config = folder / adapters.ADAPTER_WEIGHTS, folder / adapters.ADAPTER_CONFIG
    tensors = load_file(weights)
    first = sorted(tensors)[0]
    if how == "no weights":
        weights.unlink()
    elif how == "cut short":
        weights.write_bytes(weights.read_bytes()[:200])
    elif how == "no config":
        config.unlink()
    elif how == "not json":
        config.write_text("{")
    elif how == "dora":
        config.write_text(json.dumps(json.loads(config.read_text()) | {"use_dora": True}))
    elif how == "nan":
        tensors[first].view(-1)[0] = float("nan")
        save_file(tensors, weights)
    elif how == "half a pair":
        save_file({n: t for n, t in tensors.items() if n != first}, weights)


HOW = ["no weights", "cut short", "no config", "not json", "dora", "nan", "half a pair"]


@pytest.mark.parametrize("how", HOW)
def test_a_broken_folder_is_a_version_error(tiny: Any, tmp_path: Path, save_adapter: Save, how: str) -> None:
    folder = save_adapter(tiny, tmp_path / "v")
    broken(folder, how)
    with pytest.raises(VersionError):
        adapters.merged_deltas(folder)


def test_weights_of_another_rank_are_refused_and_change_nothing(
    tiny: Any, tiny_folder: Path, tmp_path: Path
) -> None:
    from stereorl.config import ModelConfig
    from stereorl.policy.load import load

    adapters.save(adapters.attach(load(ModelConfig(name=str(tiny_folder))), kind="lora", r=2), tmp_path / "v")
    model = adapters.attach(tiny, kind="lora", r=4)
    before = logits(model)
    with pytest.raises(VersionError, match="another base, rank or kind"):
        adapters.load_into(model, tmp_path / "v")
    assert torch.equal(logits(model), before)
