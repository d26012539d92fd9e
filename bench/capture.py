"""What serving costs over the bare engine: HTTP, streaming, recognition and a durable commit of every turn."""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from pathlib import Path

from common import messages, server, streams, temporary_home
from rows import Row, interleaved

TOKENS = 48


def main() -> None:
    from stereorl.config import EngineConfig, ModelConfig
    from stereorl.data import Sampling
    from stereorl.policy.engine import GenerateRequest
    from stereorl.policy.load import load
    from stereorl.policy.render import Renderer
    from stereorl.policy.torch_engine import TorchEngine

    loaded = load(ModelConfig())
    renderer = Renderer(loaded.tokenizer, loaded.context_length)
    engine = TorchEngine(loaded, EngineConfig())
    loop = asyncio.new_event_loop()
    salt = itertools.count()

    async def one(number: int, tag: str) -> int:
        ids = tuple(renderer.encode(messages(number, tag)))
        request = GenerateRequest("bench", ids, Sampling(temperature=0.6, max_tokens=TOKENS))
        return len([token async for token in engine.generate(request)])

    def bare(clients: int) -> float:
        tag = f"bare{next(salt)}"
        began = time.perf_counter()

        async def together() -> list[int]:
            return await asyncio.gather(*(one(n, tag) for n in range(clients)))

        return sum(loop.run_until_complete(together())) / (time.perf_counter() - began)

    rows = []
    with temporary_home() as folder, server(Path(folder)) as url:

        def served(clients: int) -> float:
            tag = f"served{next(salt)}"
            began = time.perf_counter()
            heard = streams(url, clients, tag, TOKENS)
            assert not any(h.error for h in heard), heard
            return sum(h.tokens for h in heard) / (time.perf_counter() - began)

        for clients in (1, 8):
            served(clients), bare(clients)  # warm up
            a, b = interleaved(lambda: served(clients), lambda: bare(clients), rounds=5)  # noqa: B023
            note = "served and stored, against the engine alone"
            rows.append(Row(f"capture overhead, {clients} clients", a, b, "tokens/s", "higher", note))
    loop.run_until_complete(engine.close())
    print(json.dumps([row.as_dict() for row in rows]))


if __name__ == "__main__":
    main()
