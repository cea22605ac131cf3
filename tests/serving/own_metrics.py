"""The process's registry of metrics for one test."""

import contextlib
from collections.abc import Iterator

from prometheus_client import REGISTRY


@contextlib.contextmanager
def own_metrics() -> Iterator[None]:
    """Empty the registry, and restore it afterwards."""
    others = list(REGISTRY._collector_to_names)
    for collector in others:
        REGISTRY.unregister(collector)
    try:
        yield
    finally:
        for collector in list(REGISTRY._collector_to_names):
            REGISTRY.unregister(collector)
        for collector in others:
            REGISTRY.register(collector)
