"""The families of a server's API processes on one page.

Counters and histograms add up, and vLLM's gauges say of themselves how they do, by the files that
prometheus_client keeps (https://prometheus.github.io/client_python/multiprocess/). Our gauges are
the first process's, which knows all; so is what the page says of a process.
"""

from collections.abc import Iterator
from typing import Final

from prometheus_client import REGISTRY, CollectorRegistry, Metric
from prometheus_client.multiprocess import MultiProcessCollector

_OURS: Final = "ultraserve_"
_OF_PROCESS: Final = ("process_", "python_")


class SharedFamilies:
    """A collector, for a registry without others, in the first process."""

    def __init__(self, own: CollectorRegistry = REGISTRY) -> None:
        self._own = own
        self._shared = MultiProcessCollector(CollectorRegistry())  # type: ignore[no-untyped-call]

    def collect(self) -> Iterator[Metric]:
        """Every family once."""
        for metric in self._shared.collect():  # type: ignore[no-untyped-call]
            if not _is_own(metric):
                yield metric
        for metric in self._own.collect():
            if _is_own(metric):
                yield metric


def _is_own(metric: Metric) -> bool:
    is_gauge = metric.type == "gauge" and metric.name.startswith(_OURS)
    return is_gauge or metric.name.startswith(_OF_PROCESS)
