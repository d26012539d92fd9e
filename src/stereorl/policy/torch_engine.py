"""The in-process engine: continuous batching, token streams, scoring and weight swaps on one model in memory.

  event loop          generate: submit, then wait on an asyncio queue that the generation thread feeds
  generation thread   batching.Batcher: one step after another while there are requests
  worker threads      score, on the scoring model; use_version, which prepares weights beside the ones that serve
Waits: a reply waits for its next token until `timeout_s` in all; a swap waits for a running score and then for the
end of the current step; a score waits for a running swap or score. Nobody waits for a swap's preparation.
"""

from __future__ import annotations

import asyncio
import atexit
import itertools
import logging
import threading
import time
import weakref
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import torch

from stereorl.config import EngineConfig, ModelConfig
from stereorl.errors import ContextLengthError, EngineError, EngineTimeout, RequestError, VersionError
from stereorl.policy import attention
from stereorl.policy.batching import Batcher, Job, attention_name, can_plan
from stereorl.policy.engine import GenerateRequest, Scores, Token
from stereorl.policy.load import Loaded, load
from stereorl.policy.render import Renderer
from stereorl.policy.sampling import Draw
from stereorl.policy.score import score
from stereorl.policy.weights import Ready, Weights, breather, give_back_memory

log = logging.getLogger(__name__)
_T = TypeVar("_T")


class TorchEngine:
    """Implements `policy.engine.Engine`. Make it inside or outside an event loop; close it when done."""

    def __init__(self, loaded: Loaded, config: EngineConfig | None = None):
        config = config or EngineConfig()
        if config.threads is not None:
            torch.set_num_threads(config.threads)
        attention.register()
        self._config = config
        self._context_length = loaded.context_length
        self._vocabulary = int(loaded.model.get_input_embeddings().weight.shape[0])
        self._eos_ids = loaded.eos_ids
        self.renderer = Renderer(loaded.tokenizer, loaded.context_length, loaded.eos_ids)
        planned = can_plan(loaded.model.config.get_text_config())
        self._weights = Weights(
            loaded.model, loaded.folder, attention=attention_name(loaded.model.config), planned=planned
        )
        self._batcher = Batcher(self._weights.serving, config, planned=planned, lean=self._weights.lean)
        self._keys = itertools.count()
        self._model_lock = threading.Lock()  # held while scoring, and while references are swapped
        # Swaps run one after another, in one thread: each thread has a heap of its own, and what a swap frees
        # would not be used again by the next one elsewhere.
        self._swapper = _quiet_worker("stereorl-swap")
        self._closed = False
        self.last_pause_s = 0.0
        self._batcher.start()
        atexit.register(_stop_at_exit, weakref.ref(self._batcher))

    @classmethod
    def from_config(cls, model: ModelConfig, engine: EngineConfig) -> TorchEngine:
        """Load the model and serve it; only the engine's own layout of the weights stays in memory."""
        return cls(load(model), engine)

    @property
    def version(self) -> int:
        return self._batcher.router.version

    @property
    def load(self) -> int:
        return len(self._batcher.router.jobs)

    @property
    def prefix_hit_tokens(self) -> int:
        """Prompt tokens served from the prefix cache so far."""
        return self._batcher.hit_tokens

    @property
    def free_share(self) -> float:
        """Share of the KV cache that no running request holds."""
        return self._batcher.free_share

    async def generate(self, request: GenerateRequest) -> AsyncIterator[Token]:
        """Tokens as they are sampled. Closing the iterator cancels the request and frees its cache."""
        draw = Draw.of(request.sampling)
        self._admit(request)
        key = f"{request.request_id}#{next(self._keys)}"
        sink = _QueueSink(asyncio.get_running_loop())
        self._batcher.submit(key, request.prompt_ids, Job(draw, sink, self._eos_ids))
        done = False
        try:
            deadline = sink.loop.time() + self._config.timeout_s
            for count in itertools.count():
                token = await self._next(sink, deadline, request.request_id, count)
                done = token.finish_reason is not None
                yield token
                if done:
                    return
        finally:
            if done:
                self._batcher.router.forget(key)
            else:
                self._batcher.withdraw(key)

    async def score(
        self,
        prompt_ids: tuple[int, ...],
        response_ids: tuple[int, ...],
        *,
        temperature: float,
        top_k: int = 0,
    ) -> Scores:
        """Log-probs of a given response under the weights that serve."""
        self._check_length(len(prompt_ids), len(response_ids))
        for name, ids in (("prompt_ids", prompt_ids), ("response_ids", response_ids)):
            if ids and not (min(ids) >= 0 and max(ids) < self._vocabulary):
                raise RequestError(
                    f"'{name}' holds an id outside this model's vocabulary of {self._vocabulary}.",
                    code="invalid_value",
                    param=name,
                )
        if self._closed:
            raise EngineError("The engine is closed.")

        def work() -> Scores:
            self._acquire(self._model_lock, "a weight swap or another score to finish")
            try:
                return score(
                    self._weights.head, prompt_ids, response_ids, temperature=temperature, top_k=top_k
                )
            finally:
                self._model_lock.release()

        return await self._in_thread(work, "a score")

    async def use_version(self, version: int, path: Path | None) -> None:
        """Serve `path` as `version` from the next token on; VersionError leaves the old version serving."""
        what = f"version {version} to be prepared and swapped in"
        await self._in_thread(lambda: self._swap(version, path), what, self._swapper)

    async def close(self) -> None:
        """Stop generating; requests still running fail with EngineError. Idempotent."""
        self._closed = True
        await asyncio.to_thread(_stop, self._batcher)
        self._swapper.shutdown(wait=False)

    def _admit(self, request: GenerateRequest) -> None:
        if self._closed:
            raise EngineError("The engine is closed.")
        if not request.prompt_ids:
            raise RequestError("The prompt is empty.", param="messages")
        self._check_length(len(request.prompt_ids), request.sampling.max_tokens)
        if self.load >= self._config.max_concurrent + self._config.max_queue:
            raise RequestError(
                f"{self.load} requests are running or waiting already; try again later.",
                status=429,
                code="rate_limit_exceeded",
            )

    def _check_length(self, prompt: int, response: int) -> None:
        if prompt + response > self._context_length:
            raise ContextLengthError(
                f"{prompt} prompt tokens and {response} for the reply exceed the model's context of "
                f"{self._context_length} tokens; shorten the messages or lower max_tokens."
            )
        if prompt + response > self._config.cache_tokens:
            raise ContextLengthError(
                f"{prompt} prompt tokens and {response} for the reply exceed the cache of "
                f"{self._config.cache_tokens} tokens; raise engine.cache_tokens or lower max_tokens."
            )

    async def _next(self, sink: _QueueSink, deadline: float, request_id: str, count: int) -> Token:
        try:
            async with asyncio.timeout_at(deadline):
                item = await sink.queue.get()
        except TimeoutError as error:
            raise EngineTimeout(
                f"Waited {self._config.timeout_s:.0f} s for request {request_id}: {count} tokens came, "
                f"{self.load} requests are running or waiting."
            ) from error
        if isinstance(item, EngineError):
            raise EngineError(str(item)) from item
        return item

    def _swap(self, version: int, path: Path | None) -> None:
        try:
            if self._closed:
                raise EngineError("The engine is closed.")
            ready = self._weights.prepare(path, breathe=breather(lambda: self.load == 0))
            self._acquire(self._model_lock, "a score to finish")
            try:
                self._install(ready, version)
            finally:
                self._model_lock.release()
            del ready
            give_back_memory()
        except OSError as error:
            raise VersionError(f"Cannot read version {version} from {path}: {error}") from error

    def _install(self, ready: Ready, version: int) -> None:
        try:
            with self._batcher.pause():
                start = time.perf_counter()
                self._weights.install(ready)
                self._batcher.forget_prefixes()
                self._batcher.router.version = version
                self.last_pause_s = time.perf_counter() - start
        except RuntimeError as error:
            if isinstance(error, EngineError):
                raise
            raise EngineError(f"Version {version} cannot be swapped in: {error}") from error

    def _acquire(self, lock: threading.Lock, what: str) -> None:
        if not lock.acquire(timeout=self._config.timeout_s):
            raise EngineTimeout(f"Waited {self._config.timeout_s:.0f} s for {what}.")

    async def _in_thread(
        self, work: Callable[[], _T], what: str, executor: ThreadPoolExecutor | None = None
    ) -> _T:
        try:
            async with asyncio.timeout(self._config.timeout_s):
                return await asyncio.get_running_loop().run_in_executor(executor, work)
        except TimeoutError as error:
            if isinstance(error, EngineTimeout):
                raise
            raise EngineTimeout(f"Waited {self._config.timeout_s:.0f} s for {what}.") from error


class _QueueSink:
    """Carries items from the generation thread into one event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop):
        self.loop = loop
        self.queue: asyncio.Queue[Token | EngineError] = asyncio.Queue()

    def put(self, item: Token | EngineError) -> None:
        try:
            self.loop.call_soon_threadsafe(self.queue.put_nowait, item)
        except RuntimeError:
            log.debug("An event loop was closed before its request ended")


def _quiet_worker(name: str) -> ThreadPoolExecutor:
    """One thread whose torch operations use one core, so that they never hold up those of the others."""
    threads = torch.get_num_threads()
    worker = ThreadPoolExecutor(1, thread_name_prefix=name)
    worker.submit(
        torch.get_num_threads
    ).result()  # a thread takes over the default at its first look, so look first
    worker.submit(torch.set_num_threads, 1).result()
    torch.set_num_threads(threads)  # the number that threads started from here on take over
    return worker


def _stop(batcher: Batcher) -> None:
    if batcher.is_running():
        batcher.stop(block=True, timeout=30, hard_stop=True)


def _stop_at_exit(ref: weakref.ref[Batcher]) -> None:
    batcher = ref()
    if batcher is not None:
        _stop(batcher)
