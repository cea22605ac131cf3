"""Sets the engine's Prometheus families to the newest snapshot."""

from collections.abc import Mapping
from typing import Final

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge

from serving.telemetry.families.engine import INFO, SNAPSHOT, WALL_E2E, WALL_TTFT
from serving.telemetry.families.family import counter, gauge, histogram
from serving.wire.telemetry import Telemetry

_WALL_BUCKETS_S: Final = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 50, 100, 250, 500)


class Recorder:
    """Registers every family once in `registry`; `record` moves them to totals."""

    def __init__(self, info: Mapping[str, str], registry: CollectorRegistry | None = None) -> None:
        registry = registry if registry is not None else REGISTRY
        self._gauges: list[tuple[str, Gauge]] = []  # of a field
        self._counters: dict[str, Counter] = {}
        for family in (name for each in SNAPSHOT for name in each.names):
            if family.kind == "gauge":
                self._gauges.append((family.field, gauge(family, registry)))
            else:
                self._counters[family.field] = counter(family, registry)
        self._totals = dict.fromkeys(self._counters, 0.0)
        gauge(INFO, registry).labels(**{name: info[name] for name in INFO.labels}).set(1)
        self._wall_ttft = histogram(WALL_TTFT, registry, _WALL_BUCKETS_S)
        self._wall_e2e = histogram(WALL_E2E, registry, _WALL_BUCKETS_S)

    def record(self, totals: Telemetry) -> None:
        """Export `totals`, no older than the last; rounding moves no total back."""
        for field, shown in self._gauges:
            shown.set(getattr(totals, field) or 0)
        for field, total in self._counters.items():
            now = getattr(totals, field)
            total.inc(max(0.0, now - self._totals[field]))
            self._totals[field] = max(now, self._totals[field])

    def observe_wall(self, ttft_s: list[float], e2e_s: list[float]) -> None:
        """Add latencies in wall seconds to families of their own."""
        for value in ttft_s:
            self._wall_ttft.observe(value)
        for value in e2e_s:
            self._wall_e2e.observe(value)
