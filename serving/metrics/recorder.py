"""Keeps the Prometheus families of ours at the values of the newest snapshot."""

from collections.abc import Mapping

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Histogram

from serving.metrics.names import (
    INFO_HELP,
    INFO_LABELS,
    INFO_NAME,
    METRICS,
    WALL_E2E_HELP,
    WALL_E2E_NAME,
    WALL_TTFT_HELP,
    WALL_TTFT_NAME,
)
from serving.metrics.snapshot import Snapshot

_WALL_BUCKETS_S = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 50, 100, 250, 500)


class Recorder:
    """Registers every family once in `registry`; `record` moves them to a snapshot.

    Counters only grow: a snapshot with a smaller total is a programming error.
    """

    def __init__(self, info: Mapping[str, str], registry: CollectorRegistry | None = None) -> None:
        registry = registry if registry is not None else REGISTRY
        self._gauges: dict[str, Gauge] = {}
        self._counters: dict[str, Counter] = {}
        for metric in METRICS:
            if metric.kind == "gauge":
                self._gauges[metric.field] = Gauge(metric.name, metric.help, registry=registry)
            else:
                self._counters[metric.field] = Counter(metric.name, metric.help, registry=registry)
        labels = {name: info[name] for name in INFO_LABELS}
        Gauge(INFO_NAME, INFO_HELP, INFO_LABELS, registry=registry).labels(**labels).set(1)
        self._wall_ttft = Histogram(
            WALL_TTFT_NAME, WALL_TTFT_HELP, buckets=_WALL_BUCKETS_S, registry=registry
        )
        self._wall_e2e = Histogram(
            WALL_E2E_NAME, WALL_E2E_HELP, buckets=_WALL_BUCKETS_S, registry=registry
        )
        self._last: Snapshot | None = None

    @property
    def last(self) -> Snapshot | None:
        """The newest snapshot, None before the first."""
        return self._last

    def record(self, snapshot: Snapshot) -> None:
        """Take over `snapshot`."""
        for field, gauge in self._gauges.items():
            gauge.set(getattr(snapshot, field))
        for field, counter in self._counters.items():
            before = getattr(self._last, field) if self._last else 0
            counter.inc(getattr(snapshot, field) - before)
        self._last = snapshot

    def observe_wall(self, ttft_s: list[float], e2e_s: list[float]) -> None:
        """Add latencies in wall seconds under names of their own."""
        for value in ttft_s:
            self._wall_ttft.observe(value)
        for value in e2e_s:
            self._wall_e2e.observe(value)
