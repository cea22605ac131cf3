"""Values of the families of serving.telemetry.families.batch."""

from collections.abc import Callable, Iterable
from functools import cache, partial
from typing import Final

from prometheus_client import REGISTRY, CollectorRegistry

from serving.telemetry.families import batch
from serving.telemetry.families.family import counter, gauge

OUTCOMES: Final = ("completed", "failed", "expired", "cancelled", "put_off", "retried")


class BatchMetrics:
    """Metrics of one server's batches; registers every family once in `registry`.

    `live` and `over` are statuses of batches, all counted from 0.
    """

    def __init__(
        self,
        *,
        live: Iterable[str],
        over: Iterable[str],
        registry: CollectorRegistry | None = None,
    ) -> None:
        registry = registry if registry is not None else REGISTRY
        self._live = tuple(live)
        self._batches = gauge(batch.BATCHES, registry)
        self._ended_of = cache(counter(batch.ENDED, registry).labels)
        self._pending = gauge(batch.PENDING, registry)
        self._under_way = gauge(batch.UNDER_WAY, registry)
        self._requests_of = cache(counter(batch.REQUESTS, registry).labels)
        self._held_groups = gauge(batch.HELD_GROUPS, registry)
        for status in over:
            self._ended_of(status)
        for outcome in OUTCOMES:
            self._requests_of(outcome)

    def follow(
        self,
        *,
        batches: Callable[[str], float],
        pending: Callable[[], float],
        under_way: Callable[[], float],
        held_groups: Callable[[], float],
    ) -> None:
        """Read the gauges from these at each scrape; `batches` by status."""
        for status in self._live:
            self._batches.labels(status).set_function(partial(batches, status))
        self._pending.set_function(pending)
        self._under_way.set_function(under_way)
        self._held_groups.set_function(held_groups)

    def answered(self, outcome: str) -> None:
        """Count what came of a request, one of OUTCOMES."""
        self._requests_of(outcome).inc()

    def ended(self, status: str) -> None:
        """Count a batch that is over."""
        self._ended_of(status).inc()
