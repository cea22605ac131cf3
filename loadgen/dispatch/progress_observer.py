"""The protocol by which a dispatcher reports progress."""

from typing import Protocol

from loadgen.records.result import Result


class ProgressObserver(Protocol):
    """Receives progress in the event loop of the run's own process; returns quickly, never raises.

    The `set_` methods are called some times a second, the others as things happen.
    """

    def add_chunks(self, traffic_class: str, count: int) -> None:
        """`count` more chunks of this class have come."""
        ...

    def add_result(self, result: Result) -> None:
        """A request has ended."""
        ...

    def set_in_flight(self, traffic_class: str, count: int) -> None:
        """So many requests of this class are under way."""
        ...

    def set_lag(self, worker: int, lag_ms: float) -> None:
        """The worker's event loop was lately so late, in wall ms."""
        ...
