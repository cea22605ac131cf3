"""A traffic class for the dispatcher: sessions, times, and bounds."""

from dataclasses import dataclass, replace
from typing import Protocol, Self

from loadgen.arrivals.pacer import Pacer
from loadgen.errors import OptionError
from loadgen.records.request import Session


class Workload(Protocol):
    """Sessions of a traffic class, made on demand. Immutable, and can be pickled."""

    def __len__(self) -> int:
        """How many sessions there are."""
        ...

    @property
    def requests(self) -> int:
        """How many requests they have in all."""
        ...

    def session(self, index: int) -> Session:
        """Make session `index`: always the same, in whichever process."""
        ...

    def requests_of(self, index: int) -> int:
        """How many requests session `index` has, without making it."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class DispatchedClass:
    """One class, or a worker's part of it: every `stride`-th session of the workload from `first`.

    `pacer` has times for those sessions alone. `wall_per_pace` is wall seconds per second of the
    pacer's time, which think times are in too: where it `follows_server`, at the dilation of the
    run's start. `start_ns` is wall ns from the run's start to the beginning of the pacer's time,
    `max_in_flight` the limit of concurrent requests. With `served_history` a message that stands
    for an earlier reply carries the server's reply. Raises ValueError for impossible values.
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
        """One worker's part; all parts together are this traffic.

        `max_in_flight` is split as evenly as whole numbers allow. Raises OptionError where a worker
        would have none of it, or of the pacer's concurrency.
        """
        if self.stride != 1:
            raise ValueError("a part has no parts")
        if self.max_in_flight < workers:
            expected = f"at most {self.max_in_flight}, the --max-in-flight of {self.name}"
            raise OptionError("--workers", workers, expected=expected)
        share = (self.max_in_flight + workers - 1 - worker) // workers
        pacer = self.pacer.part(worker, workers)
        return replace(self, pacer=pacer, max_in_flight=share, first=worker, stride=workers)
