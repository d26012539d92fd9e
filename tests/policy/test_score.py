"""Scoring: against the plain forward, whatever the batch, the chunks and the kind of head."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import transformers

from stereorl.policy import adapters
from stereorl.policy.score import response_log_probs, score

PROMPTS = [[5, 6, 7, 8], [9], [10, 11, 12, 13, 14, 15, 16]]
RESPONSES = [[20, 21, 22], [30, 31, 32, 33, 34, 35], [40]]
TEMPERATURES = [0.7, 1.0, 1.3]


def by_hand(model: Any, prompt: list[int], response: list[int], temperature: float) -> torch.Tensor:
    logits = model(torch.tensor([prompt + response])).logits[0].float() / temperature
    logp = torch.log_softmax(logits, 1)
    return torch.stack([logp[len(prompt) - 1 + t, token] for t, token in enumerate(response)])


@pytest.mark.parametrize("chunk", [1, 4, 128])
def test_equals_the_plain_forward_from_the_first_token_on(tiny: Any, chunk: int) -> None:
    logp, mask = response_log_probs(tiny.model, PROMPTS, RESPONSES, temperature=TEMPERATURES, chunk=chunk)
    assert mask.tolist() == [[True] * len(r) + [False] * (6 - len(r)) for r in RESPONSES]
    assert logp[~mask].tolist() == [0.0] * int((~mask).sum())
    for row, (prompt, response, temperature) in enumerate(zip(PROMPTS, RESPONSES, TEMPERATURES, strict=True)):
        assert torch.allclose(
            logp[row][mask[row]], by_hand(tiny.model, prompt, response, temperature), atol=1e-5
        )


def test_batch_composition_does_not_matter(tiny: Any) -> None:
    together, mask = response_log_probs(tiny.model, PROMPTS, RESPONSES, temperature=TEMPERATURES)
    for row in range(3):
        alone, _ = response_log_probs(
            tiny.model, [PROMPTS[row]], [RESPONSES[row]], temperature=TEMPERATURES[row]
        )
        assert torch.allclose(together[row][mask[row]], alone[0], atol=1e-5)


@pytest.mark.parametrize("kind", ["lora", "full"])
def test_gradient_equals_autograd_through_all_logits(tiny: Any, kind: Any) -> None:
    model = adapters.attach(tiny, kind=kind, r=4, seed=1)
    with torch.no_grad():
        for name, param in model.named_parameters():
            if "lora_B" in name:
                param.normal_(std=0.1)
    logp, _ = response_log_probs(model, PROMPTS, RESPONSES, temperature=TEMPERATURES, chunk=2)
    (logp * torch.linspace(-1, 1, logp.numel()).view_as(logp)).sum().backward()
    ours = {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()
    weights = torch.linspace(-1, 1, logp.numel()).view_as(logp)
    rows = zip(PROMPTS, RESPONSES, TEMPERATURES, weights, strict=True)
    inner = model.get_base_model() if kind == "lora" else model
    sum((by_hand(inner, p, r, t) * w[: len(r)]).sum() for p, r, t, w in rows).backward()
    for name, param in model.named_parameters():
        if param.grad is not None:
            assert torch.allclose(ours[name], param.grad, rtol=1e-3, atol=1e-5), name


def test_top_k_holds_the_likeliest(tiny: Any) -> None:
    found = score(tiny.model, PROMPTS[0], RESPONSES[0], temperature=0.7, top_k=3)
    logits = tiny.model(torch.tensor([PROMPTS[0] + RESPONSES[0]])).logits[0, 3:-1] / 0.7
    best = torch.log_softmax(logits, 1).topk(3)
    assert found.top_ids is not None
    assert found.top_ids.tolist() == best.indices.tolist()
    assert np.allclose(found.top_log_probs, best.values.detach().numpy(), atol=1e-5)
    assert np.allclose(
        found.log_probs, by_hand(tiny.model, PROMPTS[0], RESPONSES[0], 0.7).detach().numpy(), atol=1e-5
    )


@pytest.mark.parametrize(
    "config",
    [
        transformers.Gemma2Config(head_dim=8, final_logit_softcapping=5.0, attn_logit_softcapping=None),
        transformers.GraniteConfig(logits_scaling=3.0),
        transformers.CohereConfig(logit_scale=0.3),
        transformers.Qwen2Config(),
        transformers.GPT2Config(n_embd=32, n_layer=1, n_head=4, n_positions=64),
    ],
    ids=lambda config: config.model_type,
)
def test_other_architectures_score_as_their_own_forward_does(config: Any) -> None:
    if config.model_type != "gpt2":
        config.hidden_size, config.num_hidden_layers, config.intermediate_size = 32, 2, 48
        config.num_attention_heads, config.num_key_value_heads = 4, 2
        config.layer_types = ["full_attention"] * 2 if hasattr(config, "layer_types") else None
    config.vocab_size, config.pad_token_id, config.bos_token_id, config.eos_token_id = 64, 0, 1, 2
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        for param in model.parameters():
            param.add_(torch.randn_like(param) * 0.2)
    logp, _ = response_log_probs(model, PROMPTS[:1], RESPONSES[:1], temperature=1.0)
    assert torch.allclose(logp[0], by_hand(model, PROMPTS[0], RESPONSES[0], 1.0), atol=1e-4)


@pytest.mark.parametrize(
    ("prompts", "responses", "temperature"),
    [([[]], [[1]], 1.0), ([[1]], [[1]], 0.0), ([[1]], [], 1.0), ([], [], 1.0)],
)
def test_senseless_input_is_a_value_error(
    tiny: Any, prompts: Any, responses: Any, temperature: float
) -> None:
    with pytest.raises(ValueError, match=r"prompt|temperature"):
        response_log_probs(tiny.model, prompts, responses, temperature=temperature)


def test_an_empty_response_scores_to_nothing(tiny: Any) -> None:
    assert score(tiny.model, [1, 2], [], temperature=1.0).log_probs.shape == (0,)


@pytest.mark.model
def test_the_real_model_is_independent_of_its_batch(loaded: Any) -> None:
    ids = loaded.tokenizer("The sea is large, blue, and full of fish. " * 6)["input_ids"]
    prompts, responses = [ids[:9], ids[:30], ids[:3]], [ids[9:40], ids[30:33], ids[3:20]]
    with torch.no_grad():
        together, mask = response_log_probs(loaded.model, prompts, responses, temperature=1.0)
        for row in range(3):
            alone, _ = response_log_probs(loaded.model, [prompts[row]], [responses[row]], temperature=1.0)
            assert (together[row][mask[row]] - alone[0]).abs().max() <= 2e-5
