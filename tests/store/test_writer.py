"""The writer: acknowledged is durable, one bad group fails alone, a full disk is survived."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import event

from stereorl.data import Message
from stereorl.errors import NotFoundError, StoreError
from stereorl.store import NewSession, Record, Store, Writer
from tests.store.build import followed, make_turn, url_of


def test_many_callers_share_commits(store: Store) -> None:
    commits: list[int] = []

    def put(records: Any) -> None:
        commits.append(len(records))
        store.put(records)

    writer = Writer(put, batch_ms=20)
    futures = []

    def call(name: int) -> None:
        records: list[Record] = [NewSession(f"s{name}", 1.0, "new"), make_turn(f"t{name}", f"s{name}")]
        futures.append(writer.submit(records))

    threads = [threading.Thread(target=call, args=(name,)) for name in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for future in futures:
        future.result(10)
    assert writer.depth == 0
    writer.close()
    assert store.funnel().captured == 20
    assert sum(commits) == 40
    assert len(commits) < 20


def test_a_bad_group_fails_alone(store: Store) -> None:
    writer = store.writer(batch_ms=50)
    store.put([NewSession("s0", 1.0, "new")])
    good = writer.submit([make_turn("t0")])
    unknown = writer.submit([make_turn("t1"), followed("nowhere")])
    poison = writer.submit([make_turn("t2"), "no record"])  # type: ignore[list-item]
    last = writer.submit([make_turn("t3")])
    assert (good.result(10), last.result(10)) == (None, None)
    with pytest.raises(NotFoundError, match="nowhere"):
        unknown.result(10)
    with pytest.raises(StoreError, match="TypeError: str is no record"):
        poison.result(10)
    writer.close()
    assert store.session_turns("s0") == ["t0", "t3"]  # a group is stored whole or not at all


def test_closing_writes_what_is_queued(store: Store) -> None:
    writer = store.writer(batch_ms=0)
    futures = [writer.submit([NewSession(f"s{k}", 1.0, "new")]) for k in range(50)]
    writer.close()
    writer.close()
    assert all(future.done() and future.exception() is None for future in futures)
    assert store.funnel().sessions == 50
    with pytest.raises(StoreError, match="closed"):
        writer.submit([NewSession("late", 1.0, "new")])


def test_a_writer_that_hangs_says_so() -> None:
    gate = threading.Event()
    writer = Writer(lambda records: gate.wait(20) and None, batch_ms=0)  # type: ignore[func-returns-value]
    writer.submit([NewSession("s0", 1.0, "new")])
    with pytest.raises(StoreError, match=r"did not finish in 0.05 s; 1 writes"):
        writer.close(timeout=0.05)
    gate.set()
    writer.close()


def test_full_disk_refuses_exactly_what_does_not_fit_and_goes_on(tmp_path: Path) -> None:
    with Store.open(url_of(tmp_path)) as store:
        limit = [0]

        @event.listens_for(store._engine, "checkout")
        def _limit(connection: Any, _record: Any, _proxy: Any) -> None:
            pages = limit[0] or connection.execute("PRAGMA page_count").fetchone()[0] + 20
            limit[0] = limit[0] or pages
            connection.execute(f"PRAGMA max_page_count={pages}")

        store.put([NewSession("s0", 1.0, "new")])
        writer = store.writer(batch_ms=50)
        big = make_turn("big", messages=(Message("user", "x" * 500_000),))
        futures = [writer.submit([make_turn("t0")]), writer.submit([big]), writer.submit([make_turn("t1")])]
        assert futures[0].result(10) is None
        with pytest.raises(StoreError, match=r"disk that holds .*stereorl.db is full"):
            futures[1].result(10)
        assert futures[2].result(10) is None
        with pytest.raises(StoreError, match="is full"):
            store.put([big])
        assert store.session_turns("s0") == ["t0", "t1"]
        limit[0] = 10**6
        writer.submit([big]).result(10)
        writer.close()
        assert store.turn("big").messages == big.messages
        assert store.integrity_check() == "ok"


WRITE = """
import sys, threading
from stereorl.store import NewSession, Store
from tests.store.build import followed, make_turn
store = Store.open(sys.argv[1])
writer = store.writer(batch_ms=1)
lock = threading.Lock()
def client(name):
    writer.submit([NewSession(name, 1.0, "new")]).result()
    for k in range(100000):
        key = f"{name}-{k}"
        writer.submit([make_turn(key, name, index=k), followed(key)]).result()
        with lock:
            print(key, flush=True)
threads = [threading.Thread(target=client, args=(f"s{n}",)) for n in range(3)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
"""


@pytest.mark.parametrize("kill_at", ["store.before_commit:15", "store.after_commit:15", None])
def test_kill_nine_loses_nothing_acknowledged(tmp_path: Path, kill_at: str | None) -> None:
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    if kill_at:
        environment["STEREORL_KILL_AT"] = kill_at
    command = [sys.executable, "-c", WRITE, url_of(tmp_path)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
    assert process.stdout is not None
    acknowledged = [process.stdout.readline().strip() for _ in range(3)]
    if not kill_at:
        process.kill()
    acknowledged += process.stdout.read().split("\n")[:-1]
    process.stdout.close()
    assert process.wait(60) == -signal.SIGKILL
    with Store.open(url_of(tmp_path), create=False) as store:
        stored = {turn_id for row in store.sessions() for turn_id in store.session_turns(row.id)}
        assert len(acknowledged) >= 3
        assert set(acknowledged) <= stored
        assert len(stored - set(acknowledged)) <= 3  # one per client was on its way
        assert len(store.judge_queue(10**6)) == len(stored)  # a group is whole
        assert store.integrity_check() == "ok"
