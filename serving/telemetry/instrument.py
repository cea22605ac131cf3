"""prometheus_client instruments of families that count as things happen."""

from collections.abc import Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from serving.telemetry.families.family import Family


def counter(family: Family, registry: CollectorRegistry) -> Counter:
    """The family's counter, registered."""
    assert family.kind == "counter", family
    return Counter(family.name, family.help, family.labels, registry=registry)


def gauge(family: Family, registry: CollectorRegistry) -> Gauge:
    """The family's gauge, registered."""
    assert family.kind == "gauge", family
    return Gauge(family.name, family.help, family.labels, registry=registry)


def histogram(family: Family, registry: CollectorRegistry, buckets: Sequence[float]) -> Histogram:
    """The family's histogram with these upper bounds, registered."""
    assert family.kind == "histogram", family
    return Histogram(family.name, family.help, family.labels, buckets=buckets, registry=registry)
