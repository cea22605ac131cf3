"""The protocol of pacers, which say when sessions begin.

Times are ns since the run's start in the rate's own time: emulated, unless the user asked for wall
time. The dispatcher converts.
"""

from typing import Protocol, Self


class Pacer(Protocol):
    """Decides when the next session is due. Immutable and picklable."""

    @property
    def sessions(self) -> int | None:
        """Number of sessions with times; None for an endless pacer."""
        ...

    @property
    def ends_ns(self) -> int | None:
        """The time from which no session begins; None if only the workload ends it."""
        ...

    def pace(self, *, elapsed_ns: int, sent: int, in_flight: int) -> int | None:
        """When the session after the first `sent` is due, in ns since the start.

        A session with a time before `elapsed_ns` is late and goes at once. None: not before one in
        flight has ended. Ask again whenever one ends: a closed loop may then have space earlier.
        """
        ...

    def part(self, worker: int, workers: int) -> Self:
        """The pacer of one worker: every `workers`-th session from `worker`.

        All parts together give the same times for the same sessions.
        """
        ...
