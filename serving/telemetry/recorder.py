"""Keeps the engine's own Prometheus families at the values of the newest snapshot."""

from collections.abc import Collection, Mapping
from typing import Final

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge

from serving.telemetry.families.engine import INFO, SNAPSHOT, WALL_E2E, WALL_TTFT
from serving.telemetry.instrument import counter, gauge, histogram
from serving.wire.snapshot import Snapshot

_WALL_BUCKETS_S: Final = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 50, 100, 250, 500)

_MEANS: Final = frozenset({"chip_watts", "facility_watts"})


class Recorder:
    """Registers every family once in `registry`; `record` moves them to a snapshot.

    Counters only grow. A snapshot that was taken by a look between two steps may be newer than one
    that comes with a step afterwards; a total that is smaller than what is shown is then left out.
    """

    def __init__(self, info: Mapping[str, str], registry: CollectorRegistry | None = None) -> None:
        registry = registry if registry is not None else REGISTRY
        self._gauges: dict[str, Gauge] = {}
        self._counters: dict[str, Counter] = {}
        for family in SNAPSHOT:
            if family.kind == "gauge":
                self._gauges[family.field] = gauge(family, registry)
            else:
                self._counters[family.field] = counter(family, registry)
        self._totals = dict.fromkeys(self._counters, 0.0)
        gauge(INFO, registry).labels(**{name: info[name] for name in INFO.labels}).set(1)
        self._wall_ttft = histogram(WALL_TTFT, registry, _WALL_BUCKETS_S)
        self._wall_e2e = histogram(WALL_E2E, registry, _WALL_BUCKETS_S)
        self._last: Snapshot | None = None
        self._looked_s: float | None = None  # emulated, of the newest look

    @property
    def last(self) -> Snapshot | None:
        """The newest snapshot, None before the first."""
        return self._last

    def record(self, snapshot: Snapshot, *, looked: bool = False) -> None:
        """Take over `snapshot`; an older one than the last moves counters at most.

        One of a look that was `looked` at has watts that are means. From the first of them on
        those of the newest look are shown, however new a step's snapshot is, and no longer what
        single steps drew: they stand on one page with other figures of that look.
        """
        if looked and (self._looked_s is None or snapshot.emulated_s >= self._looked_s):
            self._looked_s = snapshot.emulated_s
            self._set(snapshot, _MEANS)
        if self._last is None or snapshot.emulated_s >= self._last.emulated_s:
            self._last = snapshot
            self._set(snapshot, self._gauges.keys() - _MEANS)
            if self._looked_s is None:
                self._set(snapshot, _MEANS)
        for field, total in self._counters.items():
            now = getattr(snapshot, field)
            if now > self._totals[field]:
                total.inc(now - self._totals[field])
                self._totals[field] = now

    def _set(self, snapshot: Snapshot, fields: Collection[str]) -> None:
        for field in fields:
            self._gauges[field].set(getattr(snapshot, field))

    def observe_wall(self, ttft_s: list[float], e2e_s: list[float]) -> None:
        """Add latencies in wall seconds under names of their own."""
        for value in ttft_s:
            self._wall_ttft.observe(value)
        for value in e2e_s:
            self._wall_e2e.observe(value)
