"""What `/metrics` shows. One registry per app, so that several apps in one process do not mix."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any, Protocol

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Metric, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from stereorl.store.records import StepRow

FUNNEL_EVERY_S = 3.0
STEPS_LOOKED_AT = 50  # more rejections in a row than that, and the statistics stay as they were
_FAST = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)


_STATISTIC = re.compile(r"[a-z][a-z0-9_]*")


class StoreSource(Protocol):
    def funnel(self) -> Any: ...

    def steps(self, limit: int = ...) -> Sequence[StepRow]: ...


class LastUpdate(Collector):
    """What the last published update said about itself. A statistic that it lacks is absent, never an old value."""

    def __init__(self) -> None:
        self.published = 0
        self.step: StepRow | None = None

    def look(self, steps: Sequence[StepRow], published: int) -> None:
        self.published = published
        self.step = next((step for step in reversed(steps) if step.outcome == "published"), self.step)

    def collect(self) -> Iterator[Metric]:
        yield CounterMetricFamily("stereorl_updates", "Published updates.", value=self.published)
        step = self.step
        if step is None:
            return
        yield GaugeMetricFamily("stereorl_step_version", "Version of the last update.", value=step.version)
        family = GaugeMetricFamily(
            "stereorl_step", "Statistics of the last published update.", labels=["statistic"]
        )
        for name, value in finite(step.metrics).items():
            family.add_metric([name], value)
        yield family


def finite(metrics: Mapping[str, Any]) -> dict[str, float]:
    """The statistics that are one number each: no tables, no text, nothing that is not finite."""
    return {
        name: float(value)
        for name, value in metrics.items()
        if _STATISTIC.fullmatch(name)
        and isinstance(value, int | float)
        and not isinstance(value, bool)
        and math.isfinite(value)
    }


class Metrics:
    """The meters, by the name under which the rest of serve moves them."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.requests = Counter(
            "stereorl_requests", "Answered requests.", ["route", "status"], registry=self.registry
        )
        self.tokens = Counter("stereorl_tokens", "Tokens.", ["kind"], registry=self.registry)
        self.turns = Counter(
            "stereorl_turns", "Turns by how they ended.", ["finish_reason"], registry=self.registry
        )
        self.first_token_seconds = Histogram(
            "stereorl_first_token_seconds", "Request to first token.", buckets=_FAST, registry=self.registry
        )
        self.token_gap_seconds = Histogram(
            "stereorl_token_gap_seconds", "Pause between two tokens.", buckets=_FAST, registry=self.registry
        )
        self.commit_seconds = Histogram(
            "stereorl_commit_seconds", "Wait for a commit.", buckets=_FAST, registry=self.registry
        )
        self.in_flight = Gauge("stereorl_in_flight", "Replies being made.", registry=self.registry)
        self.policy_version = Gauge("stereorl_policy_version", "Version that serves.", registry=self.registry)
        self.swaps = Counter("stereorl_version_swaps", "Versions taken up.", registry=self.registry)
        self.bad_versions = Counter("stereorl_bad_versions", "Versions refused.", registry=self.registry)
        self.queue_depth = Gauge(
            "stereorl_writer_queue", "Records waiting for a commit.", registry=self.registry
        )
        self.forks_seen = Counter("stereorl_rewritten_histories", "Sessions forked.", registry=self.registry)
        self._funnel = Gauge(
            "stereorl_funnel", "Main turns by how far they came.", ["stage"], registry=self.registry
        )
        self._dropped = Gauge(
            "stereorl_dropped", "Main turns dropped, by reason.", ["reason"], registry=self.registry
        )
        self._rewards = Gauge("stereorl_rewards", "Verdicts by reward.", ["reward"], registry=self.registry)
        self._sessions = Gauge("stereorl_sessions", "Sessions in the store.", registry=self.registry)
        self._forks = Gauge("stereorl_forks", "Forked sessions in the store.", registry=self.registry)
        self._update = LastUpdate()
        self.registry.register(self._update)
        self._read_at = float("-inf")

    def scrape(self, source: StoreSource) -> bytes:
        """The exposition text. Blocking; the store is read at most once every few seconds."""
        now = time.monotonic()
        if now - self._read_at >= FUNNEL_EVERY_S:
            self._read_at = now
            funnel = source.funnel()
            self._show(asdict(funnel))
            self._update.look(source.steps(STEPS_LOOKED_AT), funnel.steps)
        return generate_latest(self.registry)

    def _show(self, funnel: Mapping[str, Any]) -> None:
        for stage in ("captured", "side", "judged", "hinted", "scored", "trained", "waiting"):
            self._funnel.labels(stage).set(funnel[stage])
        for gauge, counts in ((self._dropped, funnel["dropped"]), (self._rewards, funnel["rewards"])):
            for label, count in counts.items():
                gauge.labels(str(label)).set(count)
        self._sessions.set(funnel["sessions"])
        self._forks.set(funnel["forks"])
