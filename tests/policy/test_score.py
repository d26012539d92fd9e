"""Scoring: against the plain forward, whatever the batch, the chunks and the kind of head."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import transformers

from stereorl.core.divergence import reverse_kl
from stereorl.policy import adapters
from stereorl.policy.score import Positions, response_log_probs, score

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


@pytest.fixture(params=["lora", "full"])
def moved(tiny: Any, request: pytest.FixtureRequest) -> Any:
    """The tiny model with weights that are not the base's: a frozen head under LoRA, a trained one else."""
    model = adapters.attach(tiny, kind=request.param, r=4, seed=1)
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for name, param in model.named_parameters():
            if param.requires_grad and "lora_A" not in name:
                param.add_(torch.randn(param.shape, generator=generator) * 0.1)
    return model


def positions(model: Any) -> Positions:
    return Positions.of(model, PROMPTS, RESPONSES, temperature=TEMPERATURES)


def teacher_of(model: Any) -> Positions:
    """The base, over the same rows."""
    with torch.no_grad(), adapters.reference(model):
        return positions(model).frozen()


def dense(model: Any) -> torch.Tensor:
    """log pi over the whole vocabulary at each response token [N, V], from the model's own logits."""
    inner = model.get_base_model() if hasattr(model, "get_base_model") else model
    rows = []
    for prompt, response, temperature in zip(PROMPTS, RESPONSES, TEMPERATURES, strict=True):
        logits = inner(torch.tensor([prompt + response])).logits[0, len(prompt) - 1 : -1].float()
        rows.append((logits / temperature).log_softmax(1))
    return torch.cat(rows)


def gradients(model: Any, value: torch.Tensor) -> dict[str, torch.Tensor]:
    model.zero_grad()
    value.backward()
    return {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}


def assert_same(model: Any, ours: torch.Tensor, plain: torch.Tensor) -> None:
    """Equal values, and equal gradients of a weighted sum of them in every trained parameter."""
    assert torch.allclose(ours, plain, atol=1e-5)
    weights = torch.linspace(-1, 1, ours.numel()).view_as(ours)
    left, right = gradients(model, (ours * weights).sum()), gradients(model, (plain * weights).sum())
    assert left.keys() == right.keys()
    assert any(grad.abs().max() > 1e-3 for grad in left.values())
    for name, grad in left.items():
        assert float((grad - right[name]).norm()) <= 1e-4 * float(right[name].norm()) + 1e-6, name


@pytest.mark.parametrize("chunk", [1, 3, 128])
def test_log_probs_at_given_ids_have_autograds_gradient(moved: Any, chunk: int) -> None:
    own = positions(moved)
    ids_NK = torch.randint(0, 64, (len(own.ids_N), 4), generator=torch.Generator().manual_seed(0))
    ids_NK[:, 0] = own.ids_N
    found_NK = own.head.log_probs_at(own.hidden_NH, ids_NK, own.temperature_N, chunk=chunk)
    assert torch.allclose(found_NK[:, 0], own.log_probs()[own.mask_BR], atol=1e-5)
    if chunk == 128:
        assert torch.equal(found_NK, own.log_probs_at(ids_NK))
    assert_same(moved, found_NK, dense(moved).gather(1, ids_NK))


def test_an_id_that_is_asked_twice_counts_twice(moved: Any) -> None:
    own = positions(moved)
    twice_NK = own.ids_N[:, None].expand(-1, 2)
    assert_same(moved, own.log_probs_at(twice_NK), dense(moved).gather(1, twice_NK))


@pytest.mark.parametrize("chunk", [1, 3, 128])
def test_a_value_of_both_distributions_has_autograds_gradient(moved: Any, chunk: int) -> None:
    teacher = teacher_of(moved)
    with torch.no_grad(), adapters.reference(moved):
        theirs_NV = dense(moved)
    own = positions(moved)
    found_N = own.head.map(
        reverse_kl, own.hidden_NH, own.temperature_N, teacher.head, teacher.hidden_NH, chunk=chunk
    )
    assert float(found_N.detach().min()) > 1e-4
    if chunk == 128:
        assert torch.equal(found_N, own.map(reverse_kl, teacher))
    own_NV = dense(moved)
    assert_same(moved, found_N, (own_NV.exp() * (own_NV - theirs_NV)).sum(1))


def test_a_value_without_gradient_is_the_same(moved: Any) -> None:
    teacher, own = teacher_of(moved), positions(moved)
    with torch.no_grad():
        assert torch.allclose(own.map(reverse_kl, teacher), positions(moved).map(reverse_kl, teacher))
        itself = positions(moved)
        assert float(itself.map(reverse_kl, itself).abs().max()) < 1e-6


def test_a_teacher_that_was_borrowed_keeps_its_weights(moved: Any) -> None:
    """The head of a model that trains is pointed back at the policy's weights; the teacher's must not follow."""
    teacher = teacher_of(moved)
    before = [row.log_probs for row in teacher.scores()]
    with torch.no_grad():
        for param in moved.parameters():
            if param.requires_grad:
                param.data = param.data + 0.3
    for row, kept in zip(teacher.scores(), before, strict=True):
        assert np.array_equal(row.log_probs, kept)


def test_the_likeliest_at_each_position(moved: Any) -> None:
    own, all_NV = positions(moved), dense(moved).detach()
    ids_NK, logp_NK = own.top(5)
    best = all_NV.topk(5)
    assert ids_NK.tolist() == best.indices.tolist()
    assert torch.allclose(logp_NK, best.values, atol=1e-5)
    whole_NV, _ = own.top(10_000)  # no more than there are
    assert whole_NV.shape == all_NV.shape


def test_scores_are_cut_into_rows(moved: Any) -> None:
    own = positions(moved)
    plain, rich = own.scores(), own.scores(top_k=3)
    logp_BR = own.log_probs().detach()
    assert all(row.top_ids is None and row.top_log_probs is None for row in plain)
    for row, response in enumerate(RESPONSES):
        assert np.allclose(plain[row].log_probs, logp_BR[row, : len(response)].numpy(), atol=1e-5)
        assert np.allclose(plain[row].log_probs, rich[row].log_probs, atol=1e-6)
        top_ids, top_log_probs = rich[row].top_ids, rich[row].top_log_probs
        assert top_ids is not None
        assert top_log_probs is not None
        assert top_ids.shape == top_log_probs.shape == (len(response), 3)
        assert (top_ids.dtype, top_log_probs.dtype) == (np.int32, np.float32)


@pytest.mark.parametrize("rows", [[0], [1, 2], [0, 2], [0, 1, 2], []])
def test_some_rows_are_what_they_were_among_all(moved: Any, rows: list[int]) -> None:
    own = positions(moved)
    part = own.rows(rows)
    assert part.mask_BR.sum(1).tolist() == [len(RESPONSES[row]) for row in rows]
    assert part.ids_N.tolist() == [token for row in rows for token in RESPONSES[row]]
    whole = own.scores(top_k=2)
    for found, row in zip(part.scores(top_k=2), rows, strict=True):
        assert np.allclose(found.log_probs, whole[row].log_probs, atol=1e-5)
        assert np.array_equal(found.top_ids, whole[row].top_ids)  # type: ignore[arg-type]


def test_values_go_back_to_their_rows(moved: Any) -> None:
    own = positions(moved)
    value_N = torch.arange(len(own.ids_N), dtype=torch.float32)
    spread_BR = own.by_row(value_N, fill=-1.0)
    assert spread_BR[own.mask_BR].tolist() == value_N.tolist()
    assert set(spread_BR[~own.mask_BR].tolist()) == {-1.0}
    both_BRK = own.by_row(torch.stack([value_N, 2 * value_N], dim=1))
    assert torch.equal(both_BRK[..., 1], 2 * both_BRK[..., 0])
    assert torch.equal(both_BRK[..., 0][own.mask_BR], value_N)


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
