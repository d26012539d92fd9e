"""The step statistics as TensorBoard's event files, by choice (`learn.tensorboard`). `metrics.jsonl` is the record."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Mapping
from typing import Any

from stereorl.config import Config
from stereorl.errors import ConfigError

FOLDER = "tensorboard"
_GROUPS = frozenset({"advantage", "gap", "gate", "grad", "importance", "n", "staleness", "term", "w"})
_NOT_STATISTICS = frozenset({"at", "step_id", "parent"})


class Board:
    """Writes one scalar per statistic and step. Made only where it is wanted: the writer behind it is not light."""

    def __init__(self, config: Config):
        """ConfigError when TensorBoard is not installed: said at the start, not after the first update."""
        if importlib.util.find_spec("tensorboard") is None:
            raise ConfigError(
                "learn.tensorboard = true needs TensorBoard: pip install 'stereorl[tensorboard]', or set it to false."
            )
        from torch.utils.tensorboard import SummaryWriter

        self._writer: Any = SummaryWriter(str(config.home_path / FOLDER))

    def write(self, record: Mapping[str, Any]) -> None:
        """The line of `metrics.jsonl` under its step's number, which no rollback sets back."""
        for tag, value in scalars(record):
            self._writer.add_scalar(tag, value, record["step_id"], walltime=record["at"])
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()


def scalars(record: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """(group/name, value) of each number; one that is not finite is shown as such, so that divergence is seen."""
    for name, value in record.items():
        if isinstance(value, int | float) and not isinstance(value, bool) and name not in _NOT_STATISTICS:
            group = name.split("_")[0]
            yield f"{group if group in _GROUPS else 'step'}/{name}", float(value)
