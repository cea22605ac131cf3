"""Values of the families of serving.telemetry.families.gateway."""

from collections.abc import Callable, Iterable
from functools import cache
from typing import Final

from prometheus_client import REGISTRY, CollectorRegistry

from serving.telemetry.families import gateway
from serving.telemetry.families.family import counter, gauge, histogram

_WAIT_BUCKETS_S: Final = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 600, 3_600)

Reading = Callable[[], float]


class GatewayMetrics:
    """Admission metrics; registers every family once in `registry`."""

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        registry = registry if registry is not None else REGISTRY
        self._requests = counter(gateway.REQUESTS, registry)
        self._refused = counter(gateway.REFUSED, registry)
        self._wait = histogram(gateway.WAIT, registry, _WAIT_BUCKETS_S)
        self._in_flight = gauge(gateway.IN_FLIGHT, registry)
        self._waiting = gauge(gateway.WAITING, registry)
        self._waiting_tokens = gauge(gateway.WAITING_TOKENS, registry)
        # A child is looked up once: `labels` takes longer than counting.
        self._requests_of = cache(self._requests.labels)
        self._refused_of = cache(self._refused.labels)
        self._wait_of = cache(self._wait.labels)
        self._limit = gauge(gateway.LIMIT, registry)

    def begin(self, work_class: str, *, outcomes: Iterable[str], reasons: Iterable[str]) -> None:
        """Start all counts at 0: a rate misses a first count that comes from none."""
        for outcome in outcomes:
            self._requests_of(work_class, outcome)
        for reason in reasons:
            self._refused_of(work_class, reason)
        self._wait_of(work_class)

    def limit(self, name: str, value: float) -> None:
        """Set one bound."""
        self._limit.labels(name).set(value)

    def follow(
        self, work_class: str, *, in_flight: Reading, waiting: Reading, waiting_tokens: Reading
    ) -> None:
        """Read the gauges of one class from these at each scrape."""
        self._in_flight.labels(work_class).set_function(in_flight)
        self._waiting.labels(work_class).set_function(waiting)
        self._waiting_tokens.labels(work_class).set_function(waiting_tokens)

    def entered(self, work_class: str) -> None:
        """Count a request that entered."""
        self._requests_of(work_class, "entered").inc()

    def left(self, work_class: str, outcome: str) -> None:
        """Count an entered request that left."""
        self._requests_of(work_class, outcome).inc()

    def refused(self, work_class: str, reason: str) -> None:
        """Count a refusal."""
        self._refused_of(work_class, reason).inc()

    def waited(self, work_class: str, emulated_s: float) -> None:
        """Observe the wait of a request that has its first token."""
        self._wait_of(work_class).observe(emulated_s)


class IngressMetrics:
    """Ingress metrics; registers every family once in `registry`. `limits`: names to be counted."""

    def __init__(self, limits: Iterable[str], registry: CollectorRegistry | None = None) -> None:
        registry = registry if registry is not None else REGISTRY
        self._held = gauge(gateway.HELD_BYTES, registry)
        self._unauthenticated = gauge(gateway.UNAUTHENTICATED, registry)
        self._refused_of = cache(counter(gateway.INGRESS_REFUSED, registry).labels)
        for limit in limits:  # a rate does not see a first count come from none
            self._refused_of(limit)

    def follow(self, *, keyed_bytes: Reading, stranger_bytes: Reading, strangers: Reading) -> None:
        """Read the gauges from these at each scrape."""
        self._held.labels("key").set_function(keyed_bytes)
        self._held.labels("none").set_function(stranger_bytes)
        self._unauthenticated.set_function(strangers)

    def refused(self, limit: str) -> None:
        """Count a refusal."""
        self._refused_of(limit).inc()
