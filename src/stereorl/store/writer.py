"""One thread that writes for everybody, many records to a commit, so that callers never wait for the disk by
turns.

    callers ──submit──▶ queue ──▶ [thread: gather for batch_ms, one transaction] ──COMMIT──▶ their futures resolve

A caller waits on its own future only. When a batch fails, its groups are tried one by one, so that a bad
group fails alone; after a full disk, writing goes on as soon as there is room.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future

from stereorl.errors import StereoError, StoreError
from stereorl.store.engine import is_busy
from stereorl.store.records import Record

MAX_GROUPS = 256  # in one commit
_Group = tuple[tuple[Record, ...], "Future[None]"]


class Writer:
    """Made by `Store.writer`. `put` writes records in one transaction."""

    def __init__(self, put: Callable[[Sequence[Record]], None], *, batch_ms: float):
        self._put = put
        self._batch_s = batch_ms / 1000
        self._queue: queue.SimpleQueue[_Group | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._depth = 0
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="store-writer", daemon=True)
        self._thread.start()

    def submit(self, records: Sequence[Record]) -> Future[None]:
        """Queue records that are committed together. The future resolves after COMMIT, or fails with a
        StereoError (StoreError: disk full, ...; NotFoundError: no such session or turn) when these records
        are not stored.
        """
        future: Future[None] = Future()
        future.set_running_or_notify_cancel()  # what is queued is written: a hung-up client cannot take it back
        with self._lock:
            if self._closed:
                raise StoreError("The store's writer is closed. Nothing more can be stored by this process.")
            self._depth += 1
            self._queue.put((tuple(records), future))
        return future

    @property
    def depth(self) -> int:
        """Submitted groups that are neither stored nor refused yet."""
        return self._depth

    def close(self, timeout: float = 10) -> None:
        """Write what is queued and stop. StoreError when that takes longer than `timeout` seconds."""
        with self._lock:
            if not self._closed:
                self._closed = True
                self._queue.put(None)
        self._thread.join(timeout)
        if self._thread.is_alive():
            raise StoreError(
                f"The store's writer did not finish in {timeout} s; {self.depth} writes were waiting."
            )

    def _run(self) -> None:
        going = True
        while going:
            groups, going = self._gather()
            self._write(groups)

    def _gather(self) -> tuple[list[_Group], bool]:
        """Wait for a first group, then take what comes within the batch time. False: the end was among it."""
        first = self._queue.get()
        if first is None:
            return [], False
        groups = [first]
        deadline = time.monotonic() + self._batch_s
        while len(groups) < MAX_GROUPS:
            try:
                item = self._queue.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                break
            if item is None:
                return groups, False
            groups.append(item)
        return groups, True

    def _write(self, groups: list[_Group]) -> None:
        if not groups:
            return
        error = self._attempt([record for records, _ in groups for record in records])
        if error is None or len(groups) == 1 or (isinstance(error, StoreError) and is_busy(error)):
            for _, future in groups:
                self._resolve(future, error)
            return
        for records, future in groups:
            self._resolve(future, self._attempt(records))

    def _attempt(self, records: Sequence[Record]) -> Exception | None:
        try:
            self._put(records)
        except StereoError as error:
            return error
        except (
            Exception
        ) as error:  # a value that no column takes: its caller must hear of it, the thread must live
            failure = StoreError(f"The records could not be stored: {type(error).__name__}: {error}")
            failure.__cause__ = error
            return failure
        return None

    def _resolve(self, future: Future[None], error: Exception | None) -> None:
        with self._lock:
            self._depth -= 1
        if error is None:
            future.set_result(None)
        else:
            future.set_exception(error)
