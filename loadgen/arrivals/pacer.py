"""The protocol of pacers, which say when sessions begin; they send nothing.

Times are nanoseconds since the run's start, in the rate's own time: emulated time unless the user
asked for wall time. The dispatcher converts.
"""

from typing import Protocol, Self


class Pacer(Protocol):
    """Decides when the next session is due. Immutable, and can be pickled."""

    @property
    def sessions(self) -> int | None:
        """Sessions that have times; None when it would go on for ever."""
        ...

    @property
    def ends_ns(self) -> int | None:
        """The time from which no session begins; None when the workload's end is the end."""
        ...

    def pace(self, *, elapsed_ns: int, sent: int, in_flight: int) -> int | None:
        """When the session after the `sent` that have begun is due, in ns since the start.

        A time before `elapsed_ns` is late: the session goes at once. None: not before one of those
        in flight has ended. A future time may be overtaken: ask again when a session ends before
        it, for a closed loop may then have space.
        """
        ...

    def part(self, worker: int, workers: int) -> Self:
        """The pacer of one of several workers, which has every `workers`-th session from `worker`.

        All parts together are this pacer: the same times for the same sessions.
        """
        ...
