"""Decoding throughput of TorchEngine against `transformers` generate, at 1 and 8 requests at once."""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from dataclasses import replace

from common import messages
from rows import Row, interleaved

TOKENS = 64


def main() -> None:
    import torch

    from stereorl.config import EngineConfig, ModelConfig
    from stereorl.data import Sampling
    from stereorl.policy.engine import GenerateRequest
    from stereorl.policy.load import load
    from stereorl.policy.render import Renderer
    from stereorl.policy.torch_engine import TorchEngine

    plain = load(ModelConfig())
    plain.model.generation_config.eos_token_id = None  # both decode TOKENS tokens, whatever they are
    endless = replace(load(ModelConfig()), eos_ids=frozenset())
    renderer = Renderer(plain.tokenizer, plain.context_length)
    engine = TorchEngine(endless, EngineConfig())
    loop = asyncio.new_event_loop()
    salt = itertools.count()

    def prompts(clients: int) -> list[list[int]]:
        number = next(salt)
        return [renderer.encode(messages(n, f"{number}")) for n in range(clients)]

    async def one(ids: list[int]) -> int:
        sampling = Sampling(temperature=0.6, max_tokens=TOKENS)
        request = GenerateRequest("bench", tuple(ids), sampling)
        return len([token async for token in engine.generate(request)])

    def ours(clients: int) -> float:
        batch = prompts(clients)
        began = time.perf_counter()

        async def together() -> list[int]:
            return await asyncio.gather(*(one(ids) for ids in batch))

        counts = loop.run_until_complete(together())
        assert counts == [TOKENS] * clients
        return clients * TOKENS / (time.perf_counter() - began)

    def other(clients: int) -> float:
        batch = prompts(clients)
        width = max(map(len, batch))
        ids = torch.tensor([[0] * (width - len(row)) + row for row in batch])
        mask = torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in batch])
        began = time.perf_counter()
        with torch.inference_mode():
            out = plain.model.generate(
                input_ids=ids,
                attention_mask=mask,
                do_sample=True,
                temperature=0.6,
                max_new_tokens=TOKENS,
                pad_token_id=0,
            )
        assert out.shape[1] == width + TOKENS
        return clients * TOKENS / (time.perf_counter() - began)

    rows = []
    for clients in (1, 8):
        ours(clients), other(clients)  # warm up
        a, b = interleaved(lambda: ours(clients), lambda: other(clients), rounds=5)  # noqa: B023
        rows.append(Row(f"decoding, {clients} at once, against generate", a, b, "tokens/s", "higher"))
    loop.run_until_complete(engine.close())
    print(json.dumps([row.as_dict() for row in rows]))


if __name__ == "__main__":
    main()
