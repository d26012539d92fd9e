"""Capture: records go to the store's writer; whoever must not go on before the commit waits for it here."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from concurrent.futures import Future

from stereorl.errors import StoreError
from stereorl.serve.metrics import Metrics
from stereorl.store.records import Record
from stereorl.store.writer import Writer

log = logging.getLogger("stereorl.serve")

PATIENCE_S = 60.0


class Journal:
    """The event loop's side of the Writer."""

    def __init__(self, writer: Writer, metrics: Metrics):
        self._writer = writer
        self._metrics = metrics

    @property
    def depth(self) -> int:
        return self._writer.depth

    def submit(self, records: Sequence[Record], what: str) -> Future[None]:
        """Hand over without waiting; a failure is logged as `what`."""
        future = self._writer.submit(records)
        future.add_done_callback(lambda done: _log_failure(done, what))
        return future

    async def commit(self, records: Sequence[Record], what: str) -> None:
        """Return once `records` are durable. Raises StoreError when they are not, or not in time."""
        started = time.perf_counter()
        await self.settle(self.submit(records, what), what)
        self._metrics.commit_seconds.observe(time.perf_counter() - started)

    async def settle(self, future: Future[None], what: str) -> None:
        """Wait for an earlier `submit`. A caller that is cancelled leaves the records on their way."""
        try:
            # shielded: cancelling the wait must not cancel the write
            await asyncio.wait_for(asyncio.shield(asyncio.wrap_future(future)), PATIENCE_S)
        except TimeoutError as error:
            if future.done():
                raise
            raise StoreError(f"Waited {PATIENCE_S:g} s for the store to commit {what}.") from error

    def close(self) -> None:
        """Flush what is on its way; blocks."""
        self._writer.close()


def _log_failure(future: Future[None], what: str) -> None:
    if not future.cancelled() and (error := future.exception()) is not None:
        log.error("Not recorded: %s: %s", what, error)
