"""A traffic class for the dispatcher: sessions, times, and limits."""

from dataclasses import dataclass, replace
from typing import Protocol, Self

from loadgen.arrivals.pacer import Pacer
from loadgen.errors import OptionError
from loadgen.records.request import Session


class Workload(Protocol):
    """Sessions of a traffic class, made on demand. Immutable and picklable."""

    def __len__(self) -> int:
        """Number of sessions."""
        ...

    @property
    def requests(self) -> int:
        """Number of requests in all sessions."""
        ...

    def session(self, index: int) -> Session:
        """Make session `index`, the same in every process."""
        ...

    def requests_of(self, index: int) -> int:
        """Number of requests of session `index`, without making it."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class DispatchedClass:
    """One class, or a worker's part: every `stride`-th session of the workload from `first`.

    `pacer` has times for those sessions alone. `wall_per_pace` is wall seconds per second of its
    time (and of think times): where it `follows_server`, at the dilation of the run's start.
    `start_ns` is wall ns from the run's start to the start of the pacer's time. With
    `served_history` a message that stands for an earlier reply carries the server's. Raises
    ValueError for impossible values.
    """

    name: str
    workload: Workload
    pacer: Pacer
    wall_per_pace: float
    max_in_flight: int
    start_ns: int = 0
    served_history: bool = False
    follows_server: bool = True
    first: int = 0
    stride: int = 1

    def __post_init__(self) -> None:
        if not self.wall_per_pace > 0:
            raise ValueError(f"wall_per_pace={self.wall_per_pace}")
        if self.max_in_flight < 1 or self.start_ns < 0:
            raise ValueError(f"max_in_flight={self.max_in_flight}, start_ns={self.start_ns}")
        if not 0 <= self.first < self.stride:
            raise ValueError(f"first={self.first}, stride={self.stride}")

    def part(self, worker: int, workers: int) -> Self:
        """One worker's part; all parts together are this class.

        `max_in_flight` is split evenly. Raises OptionError where a worker would get none of it, or
        of the pacer's concurrency.
        """
        if self.stride != 1:
            raise ValueError("a part has no parts")
        if self.max_in_flight < workers:
            expected = f"at most {self.max_in_flight}, the --max-in-flight of {self.name}"
            raise OptionError("--workers", workers, expected)
        share = (self.max_in_flight + workers - 1 - worker) // workers
        pacer = self.pacer.part(worker, workers)
        return replace(self, pacer=pacer, max_in_flight=share, first=worker, stride=workers)
