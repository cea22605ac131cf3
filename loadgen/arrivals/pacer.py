"""When sessions begin, as a protocol. A pacer is asked and answers; it sends nothing.

Times are nanoseconds since the run's start, in whichever time the rate was given in: emulated
time unless the user asked for wall time. The dispatcher converts.
"""

from typing import Protocol, Self


class Pacer(Protocol):
    """Decides when the next session is due. Immutable, and can be pickled."""

    @property
    def sessions(self) -> int | None:
        """How many sessions it has times for; None when it would go on for ever."""
        ...

    @property
    def ends_ns(self) -> int | None:
        """The time from which no session begins; None when the workload's end is the end."""
        ...

    def pace(self, *, elapsed_ns: int, sent: int, in_flight: int) -> int | None:
        """Say when the session after the `sent` that have begun is due, in ns since the start.

        The time may lie before `elapsed_ns`: the session is then late, and goes at once. None
        means that it is not due before one of those in flight has ended. A time to come may be
        overtaken: when a session ends before it, ask again, for a closed loop may then have room.
        """
        ...

    def part(self, worker: int, workers: int) -> Self:
        """The pacer of one of several workers, which has every `workers`-th session from `worker`.

        All parts together are this pacer: the same times for the same sessions.
        """
        ...
