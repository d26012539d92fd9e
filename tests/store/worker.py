"""What the store's tests run in other processes; imports little, so that these start fast."""

from __future__ import annotations

from multiprocessing.queues import Queue
from multiprocessing.synchronize import Barrier, Event

from stereorl.store import Store


def claim_all(url: str, start: Barrier, written: Event, results: Queue[list[str]]) -> None:
    with Store.open(url, create=False) as store:
        start.wait(60)
        taken: list[str] = []
        while True:
            last = written.is_set()
            claim = store.claim(3, parent_version=0)
            if claim is not None:
                taken += [sample.turn.turn_id for sample in claim.samples]
                store.finish_step(claim.step_id, "published", version=claim.step_id, metrics={})
            elif last:
                break
        results.put(taken)


def open_and_check(url: str, results: Queue[str]) -> None:
    try:
        with Store.open(url) as store:
            results.put(store.integrity_check())
    except Exception as error:
        results.put(repr(error))
