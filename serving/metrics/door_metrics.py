"""The front door's Prometheus families. Labels are classes, outcomes and reasons: never keys."""

from collections.abc import Callable
from functools import cache
from typing import Final

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Histogram

REQUESTS_NAME: Final = "ultraserve_admission_requests"
REQUESTS_HELP: Final = (
    "Requests that came to the door, by class of work and what became of them: entered, then "
    "finished, aborted, failed, or refused (also of those that had entered and waited)."
)
REFUSED_NAME: Final = "ultraserve_admission_refused"
REFUSED_HELP: Final = "Requests that were refused, by class of work and reason."
WAIT_NAME: Final = "ultraserve_admission_wait_seconds"
WAIT_HELP: Final = "Emulated seconds from entering to the first token, by class of work."
IN_FLIGHT_NAME: Final = "ultraserve_admission_in_flight"
IN_FLIGHT_HELP: Final = "Requests that have entered and not left, by class of work."
WAITING_NAME: Final = "ultraserve_admission_waiting_requests"
WAITING_HELP: Final = "Requests that wait for their turn or their first token, by class of work."
WAITING_TOKENS_NAME: Final = "ultraserve_admission_waiting_tokens"
WAITING_TOKENS_HELP: Final = "Prompt tokens of the requests that wait, by class of work."
LIMIT_NAME: Final = "ultraserve_admission_limit"
LIMIT_HELP: Final = "The bounds of the door by name, as it was started; absent where there is none."

_WAIT_BUCKETS_S: Final = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 600, 3_600)

Reading = Callable[[], float]


class DoorMetrics:
    """Registers every family once in `registry`."""

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        registry = registry if registry is not None else REGISTRY
        by_class = ("class",)
        self._requests = Counter(
            REQUESTS_NAME, REQUESTS_HELP, ("class", "outcome"), registry=registry
        )
        self._refused = Counter(REFUSED_NAME, REFUSED_HELP, ("class", "reason"), registry=registry)
        self._wait = Histogram(
            WAIT_NAME, WAIT_HELP, by_class, buckets=_WAIT_BUCKETS_S, registry=registry
        )
        self._in_flight = Gauge(IN_FLIGHT_NAME, IN_FLIGHT_HELP, by_class, registry=registry)
        self._waiting = Gauge(WAITING_NAME, WAITING_HELP, by_class, registry=registry)
        self._waiting_tokens = Gauge(
            WAITING_TOKENS_NAME, WAITING_TOKENS_HELP, by_class, registry=registry
        )
        # A child is looked up once: `labels` takes longer than counting.
        self._requests_of = cache(self._requests.labels)
        self._refused_of = cache(self._refused.labels)
        self._wait_of = cache(self._wait.labels)
        self._limit = Gauge(LIMIT_NAME, LIMIT_HELP, ("limit",), registry=registry)

    def limit(self, name: str, value: float) -> None:
        """Show one bound."""
        self._limit.labels(name).set(value)

    def follow(
        self, work_class: str, *, in_flight: Reading, waiting: Reading, waiting_tokens: Reading
    ) -> None:
        """Read the gauges of one class from these whenever they are asked for."""
        self._in_flight.labels(work_class).set_function(in_flight)
        self._waiting.labels(work_class).set_function(waiting)
        self._waiting_tokens.labels(work_class).set_function(waiting_tokens)

    def entered(self, work_class: str) -> None:
        """Count one that entered."""
        self._requests_of(work_class, "entered").inc()

    def left(self, work_class: str, outcome: str) -> None:
        """Count one that had entered and left."""
        self._requests_of(work_class, outcome).inc()

    def refused(self, work_class: str, reason: str) -> None:
        """Count one refusal by its reason."""
        self._refused_of(work_class, reason).inc()

    def waited(self, work_class: str, emulated_s: float) -> None:
        """Take the wait of one that has its first token."""
        self._wait_of(work_class).observe(emulated_s)
