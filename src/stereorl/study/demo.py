"""The whole loop, start to finish: serve, be corrected, learn, serve better. `stereorl demo` runs it.

    supervisor: serve + learn ──▶ held-out BEFORE ──▶ sessions (scripted user over HTTP) ──▶ learner caught up
        ──▶ held-out AFTER ──▶ processes ended ──▶ likelihoods ──▶ record, plot, table
                                (those of BEFORE are worked out while the learner catches up)

The main thread watches: it looks after the processes, reads the store and draws the progress; the scripted user's
sessions run in threads and wait, bounded and by name, while the learner is more than `backlog` turns behind.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from stereorl.config import Config
from stereorl.data import Turn
from stereorl.errors import ConfigError, ProcessError
from stereorl.store.records import Funnel, StepRow
from stereorl.store.store import Store
from stereorl.store.versions import Versions
from stereorl.study.evaluate import Evaluation, first_replies
from stereorl.study.personas import persona_named
from stereorl.study.progress import Progress
from stereorl.study.prompts import questions
from stereorl.study.report import DemoReport
from stereorl.study.supervise import Patience, Supervisor, child_arguments, log_tail
from stereorl.study.user import Asking, Reply, ScriptedUser, SessionResult, connect, hold_sessions

if TYPE_CHECKING:
    from openai import OpenAI

    from stereorl.study.likelihood import Likelihoods

T = TypeVar("T")


@dataclass(frozen=True)
class DemoSettings:
    """Everything that decides a run of the demo. The second half goes into the processes' configuration."""

    persona: str = "brief"
    sessions: int = 36
    turns: int = 2  # replies per session at most
    concurrent: int = 4
    backlog: int = 8  # turns that may wait for the learner before the user waits too
    heldout: int = 24
    retention: int = 8
    max_tokens: int = 48
    temperature: float = 0.6
    seed: int = 0
    settle_s: float = 180  # longest wait for the learner, at the end or while a session waits
    # configuration of server and learner
    batch_size: int = 8
    lr: float = 5e-4
    max_wait_s: float = 10
    gate_prompts: int = 6

    def overrides(self) -> dict[str, Any]:
        """As dotted settings; the user's own settings win over them."""
        return {
            "learn.batch_size": self.batch_size,
            "learn.lr": self.lr,
            "learn.max_wait_s": self.max_wait_s,
            "learn.seed": self.seed,
            "gate.retention_prompts": self.gate_prompts,
            "serve.port": 0,
        }


QUICK = DemoSettings(
    sessions=4, turns=1, heldout=4, retention=2, max_tokens=28, batch_size=4, max_wait_s=2, gate_prompts=2
)


def run_demo(config: Config, settings: DemoSettings, *, progress: Progress) -> DemoReport:
    """Run it in `config.home`, which must hold no store yet. Raises ProcessError when a process dies or stalls."""
    home = config.home_path
    if (home / "versions").exists() or (home / "stereorl.db").exists():
        raise ConfigError(f"{home} holds an earlier run; the demo starts from the base. Give another --home.")
    persona = persona_named(settings.persona)
    home.mkdir(parents=True, exist_ok=True)
    supervisor = Supervisor(home, child_arguments(config), report=progress.say, patience=Patience(restarts=0))
    clock = _Clock()
    try:
        with progress:
            progress.say(f"Starting server and learner in {home}")
            url = supervisor.start()
            clock.lap("start")
            progress.say(f"Serving at {url}; the scripted user wants {persona.wants}.")
            with _opened(config) as store, connect(url) as client:
                run = _Run(config, settings, supervisor, store, client, progress)
                outcome = run.loop(clock)
                supervisor.stop()
                progress.say("Measuring relevance and retention")
                outcome = run.measured(outcome)
                clock.lap("likelihoods")
                report = _report(config, settings, store.funnel(), store.steps(), outcome, clock)
    finally:
        supervisor.stop()
    report.write(home / "report.json")
    return report


@dataclass(frozen=True)
class _Outcome:
    before: Evaluation
    after: Evaluation
    base_replies: tuple[Reply, ...]
    sessions: tuple[SessionResult, ...]


class _Run:
    """The part of the demo during which both processes run."""

    def __init__(
        self,
        config: Config,
        settings: DemoSettings,
        supervisor: Supervisor,
        store: Store,
        client: OpenAI,
        progress: Progress,
    ):
        self.config = config
        self.settings = settings
        self.supervisor = supervisor
        self.store = store
        self.versions = Versions(config.versions_path)
        self.client = client
        self.progress = progress
        self.persona = persona_named(settings.persona)
        self.asking = Asking(settings.max_tokens, settings.temperature)
        self.funnel: Funnel = store.funnel()
        self._stop = threading.Event()
        self._scoring: _Aside[tuple[Likelihoods, Evaluation]] = _Aside()

    def loop(self, clock: _Clock) -> _Outcome:
        base_replies, before = self._watch("Held-out prompts before", self._before)
        clock.lap("before")
        sessions = self._watch("Sessions", self._sessions)
        clock.lap("sessions")
        self._scoring.submit(lambda: self._score_base(base_replies, before))
        self._settle()
        clock.lap("settle")
        after = self._watch("Held-out prompts after", lambda: self._ask(self._heldout))
        clock.lap("after")
        version = self.versions.current()
        return _Outcome(Evaluation(0, before), Evaluation(version, after), base_replies, tuple(sessions))

    def measured(self, outcome: _Outcome) -> _Outcome:
        """With relevance and retention filled in; the processes need not run any more."""
        likelihoods, before = self._scoring.result()
        relevance = likelihoods.relevance(self._turns(outcome.after.replies), self.persona.instruction)
        retention = likelihoods.retention(
            self._turns(outcome.base_replies), self.versions.path(outcome.after.version)
        )
        after = replace(outcome.after, relevance=relevance, retention=retention)
        return replace(outcome, before=before, after=after)

    def _before(self) -> tuple[tuple[Reply, ...], tuple[Reply, ...]]:
        """The base's replies to unrelated and to held-out prompts, asked together, for a batch is quicker."""
        unrelated = questions("retention")[: self.settings.retention]
        replies = self._ask((*unrelated, *self._heldout))
        return replies[: len(unrelated)], replies[len(unrelated) :]

    @property
    def _heldout(self) -> tuple[str, ...]:
        return questions("heldout")[: self.settings.heldout]

    def _ask(self, prompts: Sequence[str]) -> tuple[Reply, ...]:
        return first_replies(self.client, self.persona, prompts, self.asking, seed=self.settings.seed)

    def _score_base(
        self, base_replies: tuple[Reply, ...], before: tuple[Reply, ...]
    ) -> tuple[Likelihoods, Evaluation]:
        import torch

        from stereorl.study.likelihood import Likelihoods

        torch.set_num_threads(max(1, (os.cpu_count() or 2) // 2))  # the learner works beside us
        likelihoods = Likelihoods(self.config)
        relevance = likelihoods.relevance(self._turns(before), self.persona.instruction)
        retention = likelihoods.retention(self._turns(base_replies))
        return likelihoods, Evaluation(0, before, relevance, retention)

    def _turns(self, replies: Sequence[Reply]) -> list[Turn]:
        return [self.store.turn(reply.turn_id) for reply in replies]

    def _sessions(self) -> list[SessionResult]:
        settings = self.settings
        train = questions("train")
        chosen = [train[number % len(train)] for number in range(settings.sessions)]
        user = ScriptedUser(
            self.client, self.persona, turns=settings.turns, seed=settings.seed, asking=self.asking
        )
        return hold_sessions(
            user,
            chosen,
            concurrent=settings.concurrent,
            may_start=self._wait_for_learner,
            done=self.progress.session,
        )

    def _wait_for_learner(self) -> None:
        deadline = time.monotonic() + self.settings.settle_s
        while behind(self.funnel) > self.settings.backlog and not self._stop.is_set():
            if time.monotonic() > deadline:
                raise ProcessError(
                    f"Waited {self.settings.settle_s:g} s for the learner: {_where(self.funnel)}."
                )
            time.sleep(0.1)

    def _watch(self, what: str, work: Callable[[], T]) -> T:
        """Do `work` in a thread, looking after the processes and the display meanwhile."""
        self.progress.phase(what)
        pool = ThreadPoolExecutor(1, thread_name_prefix="demo")
        future: Future[T] = pool.submit(work)
        try:
            while not future.done():
                self._look()
                time.sleep(0.2)
            return self._result(future)
        finally:  # not waited for: what is still in flight after an error ends with the server
            if not future.done():
                self._stop.set()
            pool.shutdown(wait=False, cancel_futures=True)

    def _result(self, future: Future[T]) -> T:
        """What the work gave. A request that failed because a process died is told as that process's death."""
        from openai import APIError

        try:
            return future.result()
        except APIError as error:
            time.sleep(0.5)  # a process that has just died is not yet seen as dead
            self.supervisor.tick()
            raise ProcessError(f"The server refused a request: {error}\n{self._tail('serve')}") from error

    def _tail(self, name: str) -> str:
        log = self.supervisor.children[name].log
        return f"The end of {log}:\n{log_tail(log)}"

    def _look(self) -> None:
        self.supervisor.tick()
        self.funnel = self.store.funnel()
        self.progress.update(self.funnel, self.versions.current())

    def _settle(self) -> None:
        """Until each captured turn is trained or dropped, and the version that results is served."""
        self.progress.phase("Waiting for the learner")
        deadline = time.monotonic() + self.settings.settle_s
        while True:
            self._look()
            current = self.versions.current()
            if not self.funnel.waiting and not self.store.open_steps() and self._served() == current:
                return
            if time.monotonic() > deadline:
                raise ProcessError(
                    f"Waited {self.settings.settle_s:g} s for the learner to finish and for version {current} to be "
                    f"served: {_where(self.funnel)}. {self._tail('learn')}"
                )
            time.sleep(0.2)

    def _served(self) -> int:
        return served_version(self.client)


def behind(funnel: Funnel) -> int:
    """Turns that wait for the learner rather than for their user."""
    return funnel.waiting - funnel.stages.get("captured", 0)


def served_version(client: OpenAI) -> int:
    """The version that samples the next token, as /healthz tells."""
    import httpx

    answer = client._client.get(str(client.base_url.join("/healthz")))
    if answer.status_code != httpx.codes.OK:
        raise ProcessError(f"/healthz answers {answer.status_code}: {answer.text[:200]}")
    return int(answer.json()["policy_version"])


def _where(funnel: Funnel) -> str:
    stages = ", ".join(f"{count} at '{stage}'" for stage, count in funnel.stages.items() if count)
    return f"{funnel.trained} of {funnel.captured} turns are trained, {funnel.waiting} wait ({stages})"


class _Aside(Generic[T]):
    """One piece of work in a daemon thread, so that an error elsewhere need not wait for it."""

    def __init__(self) -> None:
        self._future: Future[T] = Future()

    def submit(self, work: Callable[[], T]) -> None:
        def run() -> None:
            try:
                self._future.set_result(work())
            except BaseException as error:
                self._future.set_exception(error)

        threading.Thread(target=run, name="aside", daemon=True).start()

    def result(self) -> T:
        return self._future.result()


class _Clock:
    def __init__(self) -> None:
        self.laps: dict[str, float] = {}
        self._last = time.monotonic()

    def lap(self, name: str) -> None:
        now = time.monotonic()
        self.laps[name] = now - self._last
        self._last = now


@contextmanager
def _opened(config: Config) -> Iterator[Store]:
    store = Store.open(config.store_url)
    try:
        yield store
    finally:
        store.close()


def _report(
    config: Config,
    settings: DemoSettings,
    funnel: Funnel,
    steps: Sequence[StepRow],
    outcome: _Outcome,
    clock: _Clock,
) -> DemoReport:
    lacking = outcome.after.version == 0
    return DemoReport(
        settings=asdict(settings),
        config=config.model_dump(mode="json"),
        home=config.home_path,
        before=outcome.before,
        after=outcome.after,
        base_replies=outcome.base_replies,
        sessions=outcome.sessions,
        funnel=asdict(funnel),
        steps=tuple({**asdict(step), "metrics": dict(step.metrics)} for step in steps),
        seconds={**clock.laps, "total": sum(clock.laps.values())},
        problems=(f"No update was published and served: {_where(funnel)}.",) if lacking else (),
    )
