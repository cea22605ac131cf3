"""Keeps the families of serving.telemetry.families.ingress."""

from collections.abc import Callable, Iterable
from functools import cache

from prometheus_client import REGISTRY, CollectorRegistry

from serving.telemetry.families import ingress
from serving.telemetry.instrument import counter, gauge


class IngressMetrics:
    """Registers every family once in `registry`; `limits` are the names that will be counted."""

    def __init__(self, limits: Iterable[str], registry: CollectorRegistry | None = None) -> None:
        registry = registry if registry is not None else REGISTRY
        self._held = gauge(ingress.HELD, registry)
        self._strangers = gauge(ingress.STRANGERS, registry)
        self._refused_of = cache(counter(ingress.REFUSED, registry).labels)
        for limit in limits:  # a rate does not see a first count come from none
            self._refused_of(limit)

    def follow(
        self,
        *,
        keyed_bytes: Callable[[], float],
        stranger_bytes: Callable[[], float],
        strangers: Callable[[], float],
    ) -> None:
        """Read the gauges from these whenever they are asked for."""
        self._held.labels("key").set_function(keyed_bytes)
        self._held.labels("none").set_function(stranger_bytes)
        self._strangers.set_function(strangers)

    def refused(self, limit: str) -> None:
        """Count one."""
        self._refused_of(limit).inc()
