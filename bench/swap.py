"""The longest pause between two tokens of four streams while an update is published, against the median one."""

from __future__ import annotations

import json
import statistics
import threading
import time
from pathlib import Path

from common import Heard, server, streams, temporary_home
from rows import Row

CLIENTS, TOKENS, ROUNDS = 4, 160, 3


def main() -> None:
    swapped, quiet, medians = [], [], []
    with temporary_home() as folder:
        home = Path(folder)
        publish = adapters(home)
        with server(home) as url:
            streams(url, CLIENTS, "warm", 16)
            for number in range(ROUNDS):
                quiet.append(longest(streams(url, CLIENTS, f"quiet{number}", TOKENS)))
                timer = threading.Timer(2.0, publish, args=(number + 1,))
                timer.start()
                heard = streams(url, CLIENTS, f"swap{number}", TOKENS)
                timer.join()
                assert not any(h.error for h in heard), heard
                swapped.append(longest(heard))
                medians.append(median(heard))
                time.sleep(1)
            assert (home / "serve.log").read_text().count("Serving version") == ROUNDS
    a, b, c = (statistics.median(times) * 1000 for times in (swapped, medians, quiet))
    rows = [
        Row(
            "longest pause between tokens while an update is published, against the median pause",
            a,
            b,
            "ms",
            "lower",
        ),
        Row("longest pause with an update, against without", a, c, "ms", "lower"),
    ]
    print(json.dumps([row.as_dict() for row in rows]))


def gaps(heard: list[Heard]) -> list[float]:
    """Pauses between neighbouring chunks of each stream; the first few wait for other prefills and are left out."""
    return [b - a for h in heard for a, b in zip(h.times[4:], h.times[5:], strict=False)]


def longest(heard: list[Heard]) -> float:
    return max(gaps(heard))


def median(heard: list[Heard]) -> float:
    return statistics.median(gaps(heard))


def adapters(home: Path):  # type: ignore[no-untyped-def]
    """A function that publishes version n: a LoRA of rank 16 with small random weights."""
    import torch

    from stereorl.config import ModelConfig
    from stereorl.policy.adapters import attach, save
    from stereorl.policy.load import load
    from stereorl.store.versions import Manifest, Versions

    loaded = load(ModelConfig())
    model = attach(loaded, kind="lora")
    torch.manual_seed(0)
    for name, param in model.named_parameters():
        if "lora_B" in name:
            param.data.normal_(std=1e-3)
    versions = Versions(home / "versions")
    stages = []
    for _ in range(ROUNDS):  # written beforehand: what is timed is the serving side
        stages.append(versions.stage())
        save(model, stages[-1])

    def publish(number: int) -> None:
        manifest = Manifest(
            version=number,
            parent=number - 1,
            step_id=None,
            created_at=time.time(),
            adapter="lora",
            base_model=loaded.name,
            base_digest=loaded.digest,
            metrics={},
            status="published",
            files={},
        )
        versions.publish(stages[number - 1], manifest)
        versions.set_current(number)

    return publish


if __name__ == "__main__":
    main()
