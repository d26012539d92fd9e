"""The learner: turns what was captured into better weights, for as long as it runs.

    serve ──▶ STORE ──▶ collector thread                     learner thread
                        every poll_s, or at once             sleeps until `news`, poll_s at most
                        after a round that found             follows CURRENT (a rollback, a promotion)
                        something:                           teacher scores what is hinted
                        judge, hints, drops ──sets `news`──▶ batch due? claim ─▶ step ─▶ gate ─▶ publish
                                                                                                   │
                        versions/ ◀────────────────────────────────────────────────────────────────┘

The two threads share nothing but the store, and the weights where the base itself judges or words hints: `model_lock`
lets one of them at a time use those. Otherwise the collector never waits for a step, the learner never for a judge, and
serving for neither. A store or disk that fails is tried again with growing pauses; afterwards the learner repairs and
reloads as if it had just started. Any other error ends the learner, whose next start repairs.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from stereorl import faults
from stereorl.config import Config
from stereorl.errors import NotFoundError, StoreError, TeacherError, VersionError
from stereorl.policy.threads import prepare_environment

if TYPE_CHECKING:
    from stereorl.learn.publish import Result
    from stereorl.policy.load import Loaded
    from stereorl.signals.judge import Judge
    from stereorl.signals.teacher import Teacher
    from stereorl.store.records import Claim, Ready
    from stereorl.store.store import Store
    from stereorl.store.versions import Versions

log = logging.getLogger("stereorl.learn")


class Learner:
    """One learner over one home. `tick` does one round in the caller's thread; `run` goes on until told to stop."""

    def __init__(
        self,
        config: Config,
        *,
        store: Store,
        versions: Versions,
        loaded: Loaded,
        log: logging.Logger = log,
        judge: Judge | None = None,
        teacher: Teacher | None = None,
    ):
        from stereorl.learn.alarms import Alarms
        from stereorl.learn.parts import assemble
        from stereorl.learn.tensorboard import Board

        self.config = config
        self._store = store
        self._versions = versions
        self._log = log
        self.parts = assemble(
            config, store=store, versions=versions, loaded=loaded, judge=judge, teacher=teacher
        )
        self._alarms = Alarms()
        self._board = Board(config) if config.learn.tensorboard else None
        self._version: int | None = None  # what the trainer holds; None: repair and reload first
        self._failed: set[str] = set()  # turns in a step that raised
        self._teacher_away = False  # the last step could not do without a teacher that failed

    @property
    def version(self) -> int | None:
        """The version that the trainer's weights are; None before the first round and after a failure."""
        return self._version

    def tick(self) -> bool:
        """Collect, then learn, once. True when anything was done."""
        collected = self.parts.collector.collect() > 0
        return self.learn_once() or collected

    def run(self, stop: threading.Event) -> None:
        """Until `stop` is set; a step under way is finished first."""
        news = threading.Event()
        failure: list[BaseException] = []
        collector = threading.Thread(
            target=self._collect, args=(stop, news, failure), name="collector", daemon=True
        )
        collector.start()
        pause = _Backoff(stop, self._log)
        while not stop.is_set() and not failure:
            try:
                busy = self.learn_once()
            except (StoreError, VersionError, OSError) as error:
                self._version = None
                pause.after(error)
                continue
            pause.reset()
            if not busy:
                news.wait(self.config.learn.poll_s)
                news.clear()
        collector.join(timeout=30)
        if failure:
            raise failure[0]

    def close(self) -> None:
        """Let go of what is open beside the store."""
        if self._board is not None:
            self._board.close()

    def learn_once(self) -> bool:
        """Follow CURRENT, score, and train if a batch is due. True when anything was done."""
        with self.parts.model_lock:
            self.follow()
            if not self.parts.batcher.idle():
                return False
            scored = self.parts.scorer.score() > 0
            if self._teacher_away and self.parts.scorer.pausing:
                return scored
            ready = self._ready()
            return (self.parts.batcher.due(ready) and self._train(ready)) or scored

    def follow(self) -> None:
        """Be at the version that serves, after repairing what the last learner left open.

        VersionError when that version is broken or of another base model.
        """
        from stereorl.learn.repair import repair

        if self._version is None:
            repair(self._store, self._versions)
        current = self._versions.current()
        if current != self._version:
            self._version = None
            self.parts.checkpoints.restore(current)
            self._version = current
            self._log.info("Learning from version %d.", current)

    def check_base(self) -> None:
        """VersionError when what serves was made from another model. A broken version passes: `run` waits for a
        rollback, beside a server that goes on serving.
        """
        try:
            current = self._versions.current()
        except VersionError:
            return
        self.parts.checkpoints.check_base(current)

    def _ready(self) -> Ready:
        """What waits, once the oldest beyond the buffer are dropped; a whole batch always may wait."""
        learn = self.config.learn
        dropped = self._store.trim_ready(max(learn.buffer_size, learn.batch_size))
        if dropped:
            self._log.warning("Dropped %d samples beyond learn.buffer_size %d.", dropped, learn.buffer_size)
        return self._store.ready()

    def _train(self, ready: Ready) -> bool:
        assert self._version is not None, "follow before training"
        parent = self._version
        n = min(ready.n, self.parts.batcher.new)
        claim = self._store.claim(
            n,
            parent_version=parent,
            replay=self.parts.batcher.replays(n),
            oldest_version=max(0, parent - self.config.learn.max_staleness),
        )
        if claim is None:
            return False
        faults.point("learn.claimed")
        if self._dropped_stale(claim, parent):
            return True
        begun = time.monotonic()
        self._version = None  # until the step has ended well, the weights are no version
        result, metrics = self._step(claim, parent)
        if result.serves:
            self._version = result.version
        self._report(claim, parent, result, {**metrics, "seconds": time.monotonic() - begun})
        return True

    def _dropped_stale(self, claim: Claim, parent: int) -> bool:
        """Give back a claim that holds samples too old to train, and drop those."""
        limit = self.config.learn.max_staleness
        stale = [s for s in claim.samples if parent - s.oldest_version > limit]
        if stale:
            self.parts.publisher.abandon(claim.step_id, "some samples were stale")
            for sample in stale:
                with suppress(NotFoundError):  # its session was forgotten meanwhile
                    self._store.drop(sample.turn.turn_id, "train", "stale")
            self._log.info("Dropped %d samples older than %d versions.", len(stale), limit)
        return bool(stale)

    def _step(self, claim: Claim, parent: int) -> tuple[Result, dict[str, Any]]:
        parts = self.parts
        self._teacher_away = False
        try:
            samples = parts.scorer.fresh([*claim.samples, *claim.replayed])
            if lost := {s.turn.turn_id for s in claim.samples} - {s.turn.turn_id for s in samples}:
                return self._unreadable(claim, lost), {}
            update = parts.trainer.step(samples, version=parent)
            faults.point("learn.stepped")
            report = parts.gate.check(parts.trainer, update)
        except TeacherError as error:
            self._teacher_away = True
            self._log.error("Step %d waits for its teacher: %s", claim.step_id, error)
            return self.parts.publisher.abandon(claim.step_id, f"no teacher: {error}"), {}
        except (RuntimeError, ValueError, MemoryError) as error:
            return self._step_failed(claim, error), {}
        metrics = {**update.metrics, **report.metrics, "gate": list(report.reasons)}
        if not update.applied:
            return parts.publisher.reject(claim.step_id, report.reasons[0], metrics), metrics
        return parts.publisher.publish(claim.step_id, parent=parent, report=report, metrics=metrics), metrics

    def _unreadable(self, claim: Claim, turn_ids: set[str]) -> Result:
        """Give back a claim with samples whose only signal is a hint that cannot be read any more; drop those."""
        result = self.parts.publisher.abandon(claim.step_id, "some hints could not be scored again")
        for turn_id in turn_ids:
            with suppress(NotFoundError):  # its session was forgotten meanwhile
                self._store.drop(turn_id, "train", "hint_unscored")
        return result

    def _step_failed(self, claim: Claim, error: Exception) -> Result:
        """A batch that fails is tried once more, as memory may have been short; the second time it is dropped."""
        turn_ids = {sample.turn.turn_id for sample in claim.samples}
        self._log.error("Step %d failed: %s", claim.step_id, error, exc_info=error)
        if self._failed & turn_ids:
            self._failed -= turn_ids
            return self.parts.publisher.reject(claim.step_id, f"failed twice: {error}")
        self._failed |= turn_ids
        return self.parts.publisher.abandon(claim.step_id, f"failed: {error}")

    def _report(self, claim: Claim, parent: int, result: Result, metrics: dict[str, Any]) -> None:
        from stereorl.learn.metrics import append_line, progress_line

        record = {
            "at": time.time(),
            "step_id": claim.step_id,
            "parent": parent,
            "outcome": result.outcome,
            "version": result.version,
            "serves": result.serves,
            **metrics,
        }
        append_line(self.config.home_path / "metrics.jsonl", record)
        if self._board is not None:
            self._board.write(record)
        level = logging.INFO if result.outcome == "published" else logging.WARNING
        self._log.log(level, "%s", progress_line(record))
        for warning in self._alarms.look(metrics):
            self._log.warning("Alarm: %s", warning)

    def _collect(self, stop: threading.Event, news: threading.Event, failure: list[BaseException]) -> None:
        """The collector thread: rounds until `stop`; what it cannot survive it hands to `run`."""
        pause = _Backoff(stop, self._log)
        try:
            while not stop.is_set():
                try:
                    moved = self.parts.collector.collect()
                except StoreError as error:
                    pause.after(error)
                    continue
                pause.reset()
                if moved:
                    news.set()
                else:
                    stop.wait(self.config.learn.poll_s)
        except Exception as error:
            failure.append(error)
            news.set()


@dataclass
class _Backoff:
    """Pauses of 0.5, 1, 2 ... 30 s after failures in a row; ends early when `stop` is set."""

    stop: threading.Event
    log: logging.Logger
    pause_s: float = 0.5

    def after(self, error: Exception) -> None:
        self.log.error("%s Trying again in %g s.", error, self.pause_s)
        self.stop.wait(self.pause_s)
        self.pause_s = min(self.pause_s * 2, 30)

    def reset(self) -> None:
        self.pause_s = 0.5


def run_learner(config: Config, *, stop: threading.Event | None = None) -> None:
    """Load the model and learn until SIGTERM or SIGINT (or `stop`). One learner per home, else ProcessError.

    It gives way to the server: lower priority, and by default half the cores.
    """
    threads = config.learn.threads or max(1, (os.cpu_count() or 2) // 2)
    prepare_environment(threads)
    from stereorl.learn.lock import learner_lock
    from stereorl.store.store import Store
    from stereorl.store.versions import Versions

    stop = stop or threading.Event()
    _prepare_process(stop)
    home = config.home_path
    home.mkdir(parents=True, exist_ok=True)
    with learner_lock(home), Store.open(config.store_url) as store:
        loaded = _load(config, threads)
        learner = Learner(config, store=store, versions=Versions(config.versions_path), loaded=loaded)
        log.info("Learning from %s in %s, %d threads.", loaded.name, home, threads)
        with closing(learner):
            learner.check_base()  # refused here, where `run` would wait for it to be mended
            learner.run(stop)
    log.info("The learner has stopped.")


def _load(config: Config, threads: int) -> Loaded:
    import torch

    from stereorl.policy.load import load

    torch.set_num_threads(threads)
    return load(config.model)


def _prepare_process(stop: threading.Event) -> None:
    """Lower priority, a log on stderr, and signals that ask for a stop (in the main thread only)."""
    os.nice(10)
    if not log.handlers and not logging.getLogger().handlers:
        logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, _setter(stop))


def _setter(stop: threading.Event) -> Callable[[int, object], None]:
    def set_it(number: int, frame: object) -> None:
        stop.set()

    return set_it
