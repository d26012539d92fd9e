"""The one place that knows transformers' continuous batching from the inside.

We keep its scheduler, paged cache, block sharing, cancellation, thread and pause, and replace five things:
  routing     each token goes to its request's sink, with the version that sampled it
  sampling    per request, with untruncated log-probs (its own come from truncated scores)
  attention   per request over the paged cache, where the model allows (attention.py)
  prefixes    blocks written under older weights are never shared with a new request
  prefill     shorter pieces while replies are being decoded, so that their streams do not stall

        event loop                      generation thread
  add ── state ──▶ input queue ──▶ prepare batch ──▶ forward ──▶ draw ──▶ update
        sink ◀── call_soon_threadsafe ◀───────────────────────────────────┘   │
  pause() ── waits between two steps ◀────────────────────────────────────────┘
"""

from __future__ import annotations

import mmap
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from transformers import GenerationConfig
from transformers.generation.configuration_utils import ContinuousBatchingConfig
from transformers.generation.continuous_batching.cache import (
    FULL_ATTENTION,
    PagedAttentionCache,
    group_layers_by_attn_type,
)
from transformers.generation.continuous_batching.continuous_api import (
    ContinuousBatchingManager,
    ContinuousBatchProcessor,
    OutputRouter,
)
from transformers.generation.continuous_batching.model_runner import ModelRunner
from transformers.generation.continuous_batching.requests import RequestState, RequestStatus

from stereorl.config import EngineConfig
from stereorl.errors import EngineError
from stereorl.policy import attention
from stereorl.policy.engine import Token
from stereorl.policy.lean import Lean
from stereorl.policy.sampling import Draw, draw_tokens

PAGE = 32
PREFILL_WHILE_DECODING = 32


class Sink(Protocol):
    """Where one request's tokens go; called from the generation thread."""

    def put(self, item: Token | EngineError) -> None: ...


@dataclass(frozen=True, slots=True, eq=False)
class Job:
    """What the generation thread knows about one request."""

    draw: Draw
    sink: Sink
    eos_ids: frozenset[int]


class _Router(OutputRouter):  # type: ignore[misc]
    """Hands every new token to its job's sink. After the thread has died, nothing may be registered any more."""

    def __init__(self) -> None:
        super().__init__()
        self.jobs: dict[str, Job] = {}
        self.version = 0
        self._dead: EngineError | None = None

    def register(self, key: str, job: Job) -> None:
        with self._lock:
            if self._dead is not None:
                raise self._dead
            self.jobs[key] = job

    def forget(self, key: str) -> None:
        with self._lock:
            self.jobs.pop(key, None)

    def fail_all(self, error: EngineError) -> None:
        with self._lock:
            self._dead = self._dead or error
            jobs, self.jobs = list(self.jobs.values()), {}
        for job in jobs:
            job.sink.put(error)

    def deliver(self, output: Any) -> None:
        job = self.jobs.get(output.request_id)
        if job is None:
            return
        if output.error is not None:
            job.sink.put(EngineError(f"Generation failed: {output.error}"))
            return
        token_id = output.generated_tokens[-1]
        done = output.status == RequestStatus.FINISHED
        reason = ("stop" if token_id in job.eos_ids else "length") if done else None
        job.sink.put(Token(token_id, output.logprobs[-1], self.version, reason))  # type: ignore[arg-type]

    def deliver_batch(self, outputs: list[Any]) -> None:
        for output in outputs:
            self.deliver(output)


class _Cache(PagedAttentionCache):  # type: ignore[misc]
    """Counts prefix hits, and keeps requests that lived through a swap from offering their blocks to others."""

    tainted: set[str]
    hit_tokens: int
    builds_reads: bool

    def search_prefix_match(self, request_id: str, prompt_ids: list[int]) -> int:
        tokens: int = super().search_prefix_match(request_id, prompt_ids)
        self.hit_tokens += tokens
        return tokens

    def mark_complete_blocks(self, state: RequestState, complete_blocks: dict[str, int]) -> None:
        if state.request_id not in self.tainted:
            super().mark_complete_blocks(state, complete_blocks)

    def free_blocks(self, request_id: str, no_cache: bool = False) -> None:
        super().free_blocks(request_id, no_cache)
        self.tainted.discard(request_id)

    def extend_read_and_write_indices(
        self, request_id: str, past_length: int, query_length: int, read_index: Any, write_index: Any
    ) -> None:
        super().extend_read_and_write_indices(
            request_id, past_length, query_length, read_index if self.builds_reads else None, write_index
        )

    def forget_prefixes(self) -> None:
        """From now on nothing written so far is shared with a new request. Running requests keep their blocks."""
        self.evict_cached_blocks()
        for allocator in self.cache_allocators.values():
            self.tainted.update(allocator.block_table)
            allocator.ledger.hash_to_block.clear()
            allocator.ledger.block_to_hash.clear()


class _Runner(ModelRunner):  # type: ignore[misc]
    """Samples by job, runs the head on rows that yield a token only, and plans attention."""

    jobs: dict[str, Job]
    planned: bool
    lean: Lean | None
    default: Draw

    def compute_batch(self, model: Any, batch_data: dict[str, Any]) -> None:
        futures = self.inputs_and_outputs.requests_in_batch
        yielding = sum(future.has_new_token for future in futures)
        batch_data["logits_indices"] = batch_data["logits_indices"][: max(yielding, 1)]
        if self.planned:
            batch_data["plan"] = self._plan(futures, batch_data["write_index"][0])
            batch_data["cache"] = None
        super().compute_batch(model, batch_data)

    def _forward_process_and_sample(self, model: Any, batch_data: dict[str, Any], *buffers: Tensor) -> None:
        if self.lean is None:
            super()._forward_process_and_sample(model, batch_data, *buffers)
            return
        hidden_NH = self.lean.hidden(
            batch_data["input_ids"][0], batch_data["position_ids"][0], batch_data["plan"].attend
        )
        yielding_NH = hidden_NH.index_select(0, batch_data["logits_indices"])
        self._sample(self.lean.head(yielding_NH)[None], buffers[-1])

    def _plan(self, futures: Sequence[Any], write: Tensor) -> attention.Plan:
        (allocator,) = self.cache.cache_allocators.values()
        spans = [
            attention.Span(
                future.query_length,
                future.state.position_offset - future.query_length,
                allocator.block_table[future.state.request_id],
            )
            for future in futures
        ]
        return attention.Plan(
            spans,
            write,
            views=allocator._kv_token_views,
            page=allocator.tokens_per_page,
            stride=allocator.block_physical_stride,
        )

    def _sample(self, scores: Tensor, output_ids: Tensor) -> None:
        keys = [f.state.request_id for f in self.inputs_and_outputs.requests_in_batch if f.has_new_token]
        if not keys:
            return
        draws = [self.jobs[key].draw if key in self.jobs else self.default for key in keys]
        ids_N, logp_N = draw_tokens(scores[0, : len(keys)], draws)
        output_ids[0, : len(keys)].copy_(ids_N)
        output_ids[1, : len(keys)].copy_(logp_N.view(torch.int32))  # the library's channel for floats


class _Processor(ContinuousBatchProcessor):  # type: ignore[misc]
    """Cuts prompts into shorter pieces while others are waiting for their next token."""

    full_batch: int

    def prepare_next_batch(self) -> bool:
        decoding = sum(s.status == RequestStatus.DECODING for s in self.scheduler.active_requests.values())
        short = min(self.full_batch, PREFILL_WHILE_DECODING + decoding)
        self.max_batch_tokens = short if decoding else self.full_batch
        return bool(super().prepare_next_batch())


class _LazyZeros(TorchFunctionMode):
    """The cache's memory comes from the system page by page as it is used, not all of it (1.5 GB) at the start."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if (
            func is torch.zeros
            and kwargs.get("dtype") is torch.uint8
            and torch.device(kwargs["device"]).type == "cpu"
        ):
            return torch.frombuffer(mmap.mmap(-1, args[0]), dtype=torch.uint8)
        return func(*args, **kwargs)


class Batcher(ContinuousBatchingManager):  # type: ignore[misc]
    """The library's manager with our parts. `model` and `lean` are used by its thread only, or inside `pause()`."""

    def __init__(self, model: Any, config: EngineConfig, *, planned: bool, lean: Lean | None):
        self._planned, self._lean = planned, lean
        self._default = Draw.of_default()
        self._threads = config.threads
        super().__init__(
            model,
            GenerationConfig(do_sample=False, eos_token_id=-1, max_new_tokens=1),
            ContinuousBatchingConfig(
                page_size=PAGE,
                num_blocks=-(-config.cache_tokens // PAGE),
                max_batch_tokens=max(config.prefill_tokens, config.max_concurrent),
                max_requests_per_batch=config.max_concurrent,
                max_memory_percent=0.9,
                allow_block_sharing=config.prefix_cache,
                use_async_batching=False,
                use_cuda_graph=False,
                return_logprobs=True,
                auto_switch_to_flash=False,
                max_blocks_per_request=0,
            ),
        )
        self.output_router = _Router()

    @property
    def router(self) -> _Router:
        router: _Router = self.output_router
        return router

    def submit(self, key: str, prompt_ids: Sequence[int], job: Job) -> None:
        """Queue one request. Raises EngineError when the generation thread is gone."""
        self.router.register(key, job)
        accepted = self.add_request(
            list(prompt_ids),
            request_id=key,
            max_new_tokens=job.draw.sampling.max_tokens,
            streaming=True,
            eos_token_id=list(job.eos_ids),
        )
        if accepted is None:
            self.router.forget(key)
            raise EngineError("The generation thread has stopped; restart the server.")

    def withdraw(self, key: str) -> None:
        """Stop a request and free its cache before the next step."""
        self.router.forget(key)
        self.cancel_request(key)

    def forget_prefixes(self) -> None:
        """Inside `pause()` only."""
        if self.batch_processor is not None:
            self.batch_processor.cache.forget_prefixes()

    @property
    def free_share(self) -> float:
        """Share of the cache that no running request holds (blocks kept for sharing count as free)."""
        if self.batch_processor is None:
            return 1.0
        cache = self.batch_processor.cache
        held = {
            b
            for a in cache.cache_allocators.values()
            for table in list(a.block_table.values())
            for b in table
        }
        return 1.0 - len(held) / max(1, int(cache.num_blocks))

    @property
    def hit_tokens(self) -> int:
        """Prompt tokens that were not computed because an earlier request had."""
        return 0 if self.batch_processor is None else int(self.batch_processor.cache.hit_tokens)

    def start(self) -> None:
        """As the library's, but the thread does not keep a process alive and never tracks gradients."""
        self.background_thread_status.clear()
        self._generation_thread = threading.Thread(
            target=self._run_generation_loop, args=(True,), name="stereorl-generation", daemon=True
        )
        self._generation_thread.start()

    def switch_to_cb_friendly_attn(self, model: Any, auto_switch_to_flash: bool = True) -> None:
        """The engine has chosen the attention already."""

    def _run_generation_loop(self, use_inference_mode: bool) -> None:
        if self._threads is not None:
            torch.set_num_threads(self._threads)
        try:
            super()._run_generation_loop(use_inference_mode)
        finally:
            cause = self.background_thread_status.fatal_error
            error = EngineError(f"The generation thread has stopped: {cause or 'the engine was closed'}.")
            error.__cause__ = cause
            self.router.fail_all(error)

    def _create_batch_processor(self) -> ContinuousBatchProcessor:
        with _LazyZeros():
            processor = super()._create_batch_processor()
        cache, runner = processor.cache, processor.model_runner
        # Their constructors are called deep inside the library, so the finished objects change class instead.
        cache.__class__, runner.__class__, processor.__class__ = _Cache, _Runner, _Processor
        cache.tainted, cache.hit_tokens, cache.builds_reads = set(), 0, not self._planned
        runner.jobs, runner.default = self.router.jobs, self._default
        runner.planned, runner.lean = self._planned, self._lean
        processor.full_batch = processor.max_batch_tokens
        if self._planned:
            processor.inputs_and_outputs.attention_mask = None
        return processor


def can_plan(config: Any) -> bool:
    """Whether each layer is plain causal attention over all earlier tokens."""
    odd = getattr(config, "attn_logit_softcapping", None) or getattr(config, "kv_lora_rank", None)
    return (
        set(group_layers_by_attn_type(config)) == {FULL_ATTENTION}
        and not odd
        and config.model_type != "gpt_oss"
    )


def attention_name(config: Any) -> str:
    """The attention implementation under which this model can serve."""
    text = config.get_text_config()
    if can_plan(text):
        return attention.NAME
    return "paged|eager" if getattr(text, "attn_logit_softcapping", None) else "sdpa"
