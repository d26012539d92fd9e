"""The engine on a tiny random model: streams, seeds, prefixes, swaps, cancellation, and every way to fail."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from stereorl.config import EngineConfig, ModelConfig
from stereorl.data.turn import Sampling
from stereorl.errors import ContextLengthError, EngineError, EngineTimeout, RequestError, VersionError
from stereorl.policy import adapters
from stereorl.policy.engine import GenerateRequest, Token
from stereorl.policy.load import load
from stereorl.policy.score import score
from stereorl.policy.torch_engine import TorchEngine

Save = Callable[..., Path]
PROMPT = tuple(range(10, 100))  # more than two cache pages
SMALL = EngineConfig(cache_tokens=2048, max_concurrent=8, prefill_tokens=64, timeout_s=60)


def run(
    loaded: Any, body: Callable[[TorchEngine], Coroutine[Any, Any, Any]], config: EngineConfig = SMALL
) -> Any:
    async def main() -> Any:
        engine = TorchEngine(loaded, config)
        engine._eos_ids = frozenset()  # replies of a known length
        try:
            return await body(engine)
        finally:
            await engine.close()

    return asyncio.run(main())


async def reply(engine: TorchEngine, prompt: Any = PROMPT, **sampling: Any) -> list[Token]:
    request = GenerateRequest(
        "r", tuple(prompt), Sampling(**{"temperature": 1.0, "max_tokens": 12, **sampling})
    )
    return [token async for token in engine.generate(request)]


def largest_gap(model: Any, prompt: Any, tokens: list[Token], temperature: float = 1.0) -> float:
    logp = score(model, prompt, [t.token_id for t in tokens], temperature=temperature).log_probs
    return max(abs(t.log_prob - float(x)) for t, x in zip(tokens, logp, strict=True))


def test_log_probs_equal_the_trainers_for_many_requests_at_once(tiny: Any) -> None:
    prompts = [PROMPT, PROMPT[:1], PROMPT[:40], PROMPT[5:70], PROMPT[:33], PROMPT, PROMPT[:64], PROMPT[:2]]

    async def body(engine: TorchEngine) -> None:
        for temperature in (1.0, 0.4):
            replies = await asyncio.gather(*[reply(engine, p, temperature=temperature) for p in prompts])
            for prompt, tokens in zip(prompts, replies, strict=True):
                assert largest_gap(tiny.model, prompt, tokens, temperature) <= 1e-4

    run(tiny, body)


def test_the_finish_reason_is_on_the_last_token_only(tiny: Any) -> None:
    async def body(engine: TorchEngine) -> None:
        tokens = await reply(engine, max_tokens=5)
        assert [t.finish_reason for t in tokens] == [None] * 4 + ["length"]
        engine._eos_ids = frozenset(range(258))
        assert [t.finish_reason for t in await reply(engine)] == ["stop"]

    run(tiny, body)


def test_a_seed_repeats_a_reply_and_greedy_needs_none(tiny: Any) -> None:
    async def body(engine: TorchEngine) -> None:
        first = await reply(engine, seed=3)
        again, other, *_ = await asyncio.gather(reply(engine, seed=3), reply(engine, seed=4), reply(engine))
        assert [t.token_id for t in first] == [t.token_id for t in again]
        assert [t.token_id for t in first] != [t.token_id for t in other]
        greedy = await reply(engine, temperature=0)
        assert [t.token_id for t in greedy] == [t.token_id for t in await reply(engine, temperature=0)]
        ids = torch.tensor([PROMPT])
        assert greedy[0].token_id == int(tiny.model(ids).logits[0, -1].argmax())
        assert largest_gap(tiny.model, PROMPT, greedy) <= 1e-4

    run(tiny, body)


def test_truncated_sampling_stores_untruncated_log_probs(tiny: Any) -> None:
    async def body(engine: TorchEngine) -> None:
        for cut in ({"top_k": 1}, {"top_p": 0.05}, {"top_k": 5, "top_p": 0.5}):
            tokens = await reply(engine, temperature=0.7, **cut)
            assert largest_gap(tiny.model, PROMPT, tokens, 0.7) <= 1e-4
            assert min(t.log_prob for t in tokens) < -0.05

    run(tiny, body)


def test_a_repeated_prompt_hits_the_prefix_cache_and_changes_nothing(tiny: Any) -> None:
    async def body(engine: TorchEngine) -> None:
        cold = await reply(engine, seed=1)
        assert engine.prefix_hit_tokens == 0
        warm = await reply(engine, seed=1)
        assert engine.prefix_hit_tokens == 64
        assert [t.token_id for t in cold] == [t.token_id for t in warm]
        assert largest_gap(tiny.model, PROMPT, warm) <= 1e-4

    run(tiny, body)


def test_the_prefix_cache_can_be_off(tiny: Any) -> None:
    async def body(engine: TorchEngine) -> None:
        await reply(engine)
        assert largest_gap(tiny.model, PROMPT, await reply(engine)) <= 1e-4
        assert engine.prefix_hit_tokens == 0

    run(tiny, body, SMALL.model_copy(update={"prefix_cache": False}))


def test_a_long_prompt_is_prefilled_in_pieces_beside_running_replies(tiny: Any) -> None:
    long = tuple(i % 250 for i in range(400))

    async def body(engine: TorchEngine) -> None:
        short, tokens, more = await asyncio.gather(
            reply(engine, PROMPT[:3], max_tokens=40), reply(engine, long), reply(engine, long[::-1])
        )
        assert largest_gap(tiny.model, PROMPT[:3], short) <= 1e-4
        assert largest_gap(tiny.model, long, tokens) <= 1e-4
        assert largest_gap(tiny.model, long[::-1], more) <= 1e-4

    run(tiny, body)


def test_a_full_cache_makes_requests_wait_or_restart_but_not_lie(tiny: Any) -> None:
    async def body(engine: TorchEngine) -> None:
        replies = await asyncio.gather(*[reply(engine, [i] * 200, max_tokens=150) for i in range(8)])
        for i, tokens in enumerate(replies):
            assert len(tokens) == 150
            assert largest_gap(tiny.model, [i] * 200, tokens) <= 1e-4

    run(tiny, body, SMALL.model_copy(update={"cache_tokens": 1024}))


def served(tmp_path: Path, tiny_folder: Path, save: Save, seed: int) -> tuple[Path, Any]:
    trainer = load(ModelConfig(name=str(tiny_folder)))
    return save(trainer, tmp_path / f"v{seed}", seed=seed, size=0.2), trainer.model


def test_a_swap_between_two_tokens(tiny: Any, tiny_folder: Path, tmp_path: Path, save_adapter: Save) -> None:
    """Running requests go on; new ones see the new weights and no block that the old ones wrote; back again too."""
    path, trainer = served(tmp_path, tiny_folder, save_adapter, 1)

    async def body(engine: TorchEngine) -> None:
        old = await reply(engine, seed=1)
        running = asyncio.create_task(reply(engine, max_tokens=300))
        while engine.load == 0 or engine.free_share == 1.0:
            await asyncio.sleep(0.001)
        await asyncio.sleep(0.05)
        await engine.use_version(1, path)
        assert engine.version == 1
        hits = engine.prefix_hit_tokens
        new = await reply(engine, seed=1)
        assert engine.prefix_hit_tokens == hits
        assert {t.version for t in new} == {1}
        assert largest_gap(trainer, PROMPT, new) <= 1e-4
        assert largest_gap(tiny.model, PROMPT, new) > 1e-2
        mixed = await running
        assert [t.version for t in mixed] == sorted(t.version for t in mixed)
        assert {t.version for t in mixed} == {0, 1}
        assert all(math.isfinite(t.log_prob) and t.log_prob <= 0 for t in mixed)
        again = await reply(engine, seed=1)  # the mixed request's blocks must not have been offered
        assert engine.prefix_hit_tokens == hits + 64
        assert largest_gap(trainer, PROMPT, again) <= 1e-4
        scores = await engine.score(PROMPT, tuple(t.token_id for t in new), temperature=1.0)
        assert max(abs(scores.log_probs - [t.log_prob for t in new])) <= 1e-4
        await engine.use_version(0, None)
        back = await reply(engine, seed=1)
        assert [t.token_id for t in back] == [t.token_id for t in old]
        assert largest_gap(tiny.model, PROMPT, back) <= 1e-4

    run(tiny, body)


def test_an_adapter_after_another_replaces_it(
    tiny: Any, tiny_folder: Path, tmp_path: Path, save_adapter: Save
) -> None:
    first, _ = served(tmp_path, tiny_folder, save_adapter, 1)
    second, trainer = served(tmp_path, tiny_folder, save_adapter, 2)

    async def body(engine: TorchEngine) -> None:
        await asyncio.gather(engine.use_version(1, first), engine.use_version(2, first))
        await engine.use_version(2, second)
        assert largest_gap(trainer, PROMPT, await reply(engine)) <= 1e-4

    run(tiny, body)


def test_a_full_checkpoint_is_served_and_leaves_again(tiny: Any, tiny_folder: Path, tmp_path: Path) -> None:
    trainer = adapters.attach(load(ModelConfig(name=str(tiny_folder))), kind="full")
    with torch.no_grad():
        for param in trainer.parameters():
            param.add_(torch.randn_like(param) * 0.05)
    adapters.save(trainer, tmp_path / "v1")

    async def body(engine: TorchEngine) -> None:
        await engine.use_version(1, tmp_path / "v1")
        tokens = await reply(engine)
        assert largest_gap(trainer, PROMPT, tokens) <= 1e-4
        assert largest_gap(tiny.model, PROMPT, tokens) > 1e-2
        await engine.use_version(0, None)
        assert largest_gap(tiny.model, PROMPT, await reply(engine)) <= 1e-4

    run(tiny, body)


@pytest.mark.parametrize("how", ["absent", "cut short", "nan", "another model"])
def test_a_bad_version_is_refused_and_the_old_one_serves(
    tiny: Any, tiny_folder: Path, tmp_path: Path, save_adapter: Save, how: str
) -> None:
    from tests.policy.test_adapters import broken

    path, _ = served(tmp_path, tiny_folder, save_adapter, 1)
    if how == "absent":
        path = tmp_path / "nowhere"
    elif how == "another model":
        other = transformers.LlamaForCausalLM(
            transformers.LlamaConfig(
                vocab_size=64,
                hidden_size=32,
                intermediate_size=48,
                num_hidden_layers=1,
                num_attention_heads=4,
            )
        )
        adapters.save(adapters.attach(_Named(other), kind="lora", r=4), path)  # type: ignore[arg-type]
    else:
        broken(path, how)

    async def body(engine: TorchEngine) -> None:
        with pytest.raises(VersionError):
            await engine.use_version(1, path)
        assert engine.version == 0
        tokens = await reply(engine)
        assert {t.version for t in tokens} == {0}
        assert largest_gap(tiny.model, PROMPT, tokens) <= 1e-4

    run(tiny, body)


class _Named:
    name = "other"

    def __init__(self, model: Any):
        self.model = model


def test_closing_the_stream_cancels_the_request_and_frees_its_cache(tiny: Any) -> None:
    async def body(engine: TorchEngine) -> None:
        stream = engine.generate(GenerateRequest("r", PROMPT, Sampling(max_tokens=400)))
        await anext(stream)
        assert engine.load == 1
        assert engine.free_share < 1
        await stream.aclose()
        assert engine.load == 0
        for _ in range(200):
            if engine.free_share == 1.0:
                break
            await asyncio.sleep(0.01)
        assert engine.free_share == 1.0
        assert largest_gap(tiny.model, PROMPT, await reply(engine)) <= 1e-4

    run(tiny, body)


def test_what_does_not_fit_is_refused_by_name(tiny: Any) -> None:
    async def body(engine: TorchEngine) -> None:
        with pytest.raises(ContextLengthError, match="512"):
            await reply(engine, range(200), max_tokens=313)
        with pytest.raises(ContextLengthError, match="context"):
            await engine.score(tuple([1] * 300), tuple([1] * 300), temperature=1.0)
        with pytest.raises(RequestError, match="empty"):
            await reply(engine, [])
        with pytest.raises(RequestError, match="temperature"):
            await reply(engine, temperature=-1)
        assert engine.load == 0

    run(tiny, body)


def test_more_than_the_queue_holds_is_told_to_come_back(tiny: Any) -> None:
    async def body(engine: TorchEngine) -> None:
        tasks = [asyncio.create_task(reply(engine, max_tokens=50)) for _ in range(4)]
        results = await asyncio.gather(*tasks, return_exceptions=True)
        refused = [r for r in results if isinstance(r, RequestError)]
        assert [(r.status, r.code) for r in refused] == [(429, "rate_limit_exceeded")]
        assert sum(isinstance(r, list) for r in results) == 3

    run(tiny, body, SMALL.model_copy(update={"max_concurrent": 2, "max_queue": 1}))


def test_a_dead_generation_thread_fails_everyone_and_hangs_nobody(
    tiny: Any, caplog: pytest.LogCaptureFixture
) -> None:
    async def body(engine: TorchEngine) -> None:
        stream = engine.generate(GenerateRequest("r", PROMPT, Sampling(max_tokens=400)))
        await anext(stream)

        def boom(*args: Any, **kwargs: Any) -> None:
            raise ValueError("out of luck")

        engine._batcher.batch_processor.model_runner.compute_batch = boom
        with pytest.raises(EngineError, match="out of luck"):
            async for _ in stream:
                pass
        with pytest.raises(EngineError, match="stopped"):
            await reply(engine)
        with pytest.raises(EngineError):
            await engine.use_version(0, None)
        assert engine.load == 0

    run(tiny, body)
    assert "out of luck" in caplog.text


def test_a_reply_that_takes_too_long_names_what_was_waited_for(tiny: Any) -> None:
    async def body(engine: TorchEngine) -> None:
        await reply(engine)
        with engine._batcher.pause():
            with pytest.raises(EngineTimeout, match="request slow: 0 tokens"):
                async for _ in engine.generate(GenerateRequest("slow", PROMPT, Sampling())):
                    pass
            assert engine.load == 0

    run(tiny, body, SMALL.model_copy(update={"timeout_s": 0.3}))


def test_closing_fails_what_runs_and_refuses_what_comes(tiny: Any) -> None:
    async def body(engine: TorchEngine) -> None:
        running = asyncio.create_task(reply(engine, max_tokens=400))
        while engine.load == 0:
            await asyncio.sleep(0.001)
        await engine.close()
        with pytest.raises(EngineError):
            await running
        with pytest.raises(EngineError, match="closed"):
            await reply(engine)
        with pytest.raises(EngineError, match="closed"):
            await engine.score((1,), (2,), temperature=1.0)
        await engine.close()

    run(tiny, body)


@pytest.mark.parametrize(
    "config",
    [
        transformers.MistralConfig(sliding_window=16),
        transformers.Gemma2Config(head_dim=8, sliding_window=16),
        transformers.Qwen2Config(),
        transformers.Qwen3Config(head_dim=8),
    ],
    ids=lambda config: config.model_type,
)
def test_other_architectures_are_served_with_the_trainers_log_probs(
    config: Any, tiny_folder: Path, tmp_path: Path
) -> None:
    import shutil

    config.hidden_size, config.num_hidden_layers, config.intermediate_size = 32, 2, 80
    config.num_attention_heads, config.num_key_value_heads, config.vocab_size = 4, 2, 258
    config.pad_token_id = config.bos_token_id = None
    config.eos_token_id, config.initializer_range = 257, 0.1
    if getattr(config, "layer_types", None):
        config.layer_types = config.layer_types[:2]
    folder = tmp_path / "model"
    shutil.copytree(tiny_folder, folder)
    torch.manual_seed(0)
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    other = load(ModelConfig(name=str(folder), context_length=512))

    async def body(engine: TorchEngine) -> None:
        replies = await asyncio.gather(reply(engine), reply(engine, PROMPT[:7]), reply(engine, PROMPT[3:]))
        for prompt, tokens in zip((PROMPT, PROMPT[:7], PROMPT[3:]), replies, strict=True):
            assert largest_gap(other.model, prompt, tokens) <= 1e-4
        warm = await reply(engine)
        assert largest_gap(other.model, PROMPT, warm) <= 1e-4
        scores = await engine.score(PROMPT, tuple(t.token_id for t in warm), temperature=1.0)
        assert max(abs(scores.log_probs - [t.log_prob for t in warm])) <= 1e-4

    run(other, body)


@pytest.mark.parametrize("lean", [True, False])
def test_both_ways_through_the_model_serve_the_same(
    tiny: Any,
    tiny_folder: Path,
    tmp_path: Path,
    save_adapter: Save,
    monkeypatch: pytest.MonkeyPatch,
    lean: bool,
) -> None:
    """The library's forward, with our layers in it, is what models without a lean one get."""
    from stereorl.policy import weights

    monkeypatch.setattr(weights, "fits", lambda model: lean)
    path, trainer = served(tmp_path, tiny_folder, save_adapter, 1)

    async def body(engine: TorchEngine) -> None:
        assert (engine._weights.lean is not None) == lean
        assert largest_gap(tiny.model, PROMPT, await reply(engine)) <= 1e-4
        await engine.use_version(1, path)
        tokens = await reply(engine)
        assert largest_gap(trainer, PROMPT, tokens) <= 1e-4
        scores = await engine.score(PROMPT, tuple(t.token_id for t in tokens), temperature=1.0)
        assert max(abs(scores.log_probs - [t.log_prob for t in tokens])) <= 1e-4

    run(tiny, body)


def test_a_lean_forward_that_disagrees_is_not_used(tiny: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from stereorl.policy.lean import Lean

    monkeypatch.setattr(Lean, "agrees", lambda self, model: False)

    async def body(engine: TorchEngine) -> None:
        assert engine._weights.lean is None
        assert largest_gap(tiny.model, PROMPT, await reply(engine)) <= 1e-4

    run(tiny, body)


def test_bfloat16_serves_when_asked_for(tiny_folder: Path) -> None:
    half = load(ModelConfig(name=str(tiny_folder), dtype="bfloat16"))

    async def body(engine: TorchEngine) -> None:
        tokens = await reply(engine)
        assert len(tokens) == 12
        assert largest_gap(half.model, PROMPT, tokens) <= 0.3

    run(half, body)


def test_the_callers_model_is_left_alone(tiny: Any, tiny_folder: Path, tmp_path: Path) -> None:
    trainer = adapters.attach(load(ModelConfig(name=str(tiny_folder))), kind="full")
    with torch.no_grad():
        next(trainer.parameters()).add_(1.0)
    adapters.save(trainer, tmp_path / "v1")
    before = {name: param.clone() for name, param in tiny.model.named_parameters()}

    async def body(engine: TorchEngine) -> None:
        await engine.use_version(1, tmp_path / "v1")

    run(tiny, body)
    assert all(torch.equal(param, before[name]) for name, param in tiny.model.named_parameters())
    assert tiny.model.config._attn_implementation == "sdpa"
