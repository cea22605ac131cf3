"""Two readings of a server's clock and meters, and their difference.

A server on emulated hardware exports its dilation, and energy in emulated time. A server without
such metrics is measured in wall time, without energy; that is no error.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

FOLLOWING_CLOCK: Final = "auto"
"""The `info` of a server with a clock whose dilation follows the load."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerReading:
    """One reading; None for what the server does not export.

    `dilation` is wall seconds per emulated second; `info` names the emulated machine; the others
    are totals since the server's start, in emulated time, and the machine's size. Of vLLM's own
    totals: `queue_s` waited in the engine's queue (the run's time) by `queued_requests`, prompt
    tokens looked up in and found in the prefix cache. `problem` is empty, or says why there was no
    page.
    """

    dilation: float | None = None
    emulated_s: float | None = None
    lag_s: float | None = None
    chip_joules: float | None = None
    facility_joules: float | None = None
    provisioned_watts: float | None = None
    chips: float | None = None
    queue_s: float | None = None
    queued_requests: float | None = None
    prefix_queries: float | None = None
    prefix_hits: float | None = None
    info: Mapping[str, str] = field(default_factory=dict)
    problem: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerWindow:
    """Two readings, and their differences; None where either lacks it."""

    start: ServerReading
    end: ServerReading

    @property
    def dilation(self) -> float:
        """Wall seconds per second of the run's time: 1 for a server without a clock of its own."""
        return 1.0 if self.start.dilation is None else self.start.dilation

    @property
    def chips(self) -> float | None:
        """Chips that the server emulates."""
        return self.start.chips

    @property
    def provisioned_watts(self) -> float | None:
        """Watts that are set aside for them."""
        return self.start.provisioned_watts

    @property
    def emulated(self) -> bool:
        """True if the server keeps emulated time."""
        return self.start.dilation is not None

    @property
    def dilation_changed(self) -> bool:
        """Whether the server's clock was changed in between: no single dilation fits the run."""
        return self.end.dilation is not None and self.end.dilation != self.start.dilation

    @property
    def emulated_s(self) -> float | None:
        """Emulated seconds that the meters ran for."""
        return _grown(self.start.emulated_s, self.end.emulated_s)

    @property
    def lag_s(self) -> float | None:
        """Emulated seconds by which the emulation's own host was late."""
        return _grown(self.start.lag_s, self.end.lag_s)

    @property
    def chip_joules(self) -> float | None:
        """Energy of the chips."""
        return _grown(self.start.chip_joules, self.end.chip_joules)

    @property
    def facility_joules(self) -> float | None:
        """Energy at the facility: chips, their share of the racks, and cooling."""
        return _grown(self.start.facility_joules, self.end.facility_joules)

    @property
    def queue_s(self) -> float | None:
        """Time of requests in the engine's queue, in the run's time."""
        return _grown(self.start.queue_s, self.end.queue_s)

    @property
    def queued_requests(self) -> float | None:
        """Requests that left that queue."""
        return _grown(self.start.queued_requests, self.end.queued_requests)

    @property
    def prefix_queries(self) -> float | None:
        """Prompt tokens looked up in the prefix cache."""
        return _grown(self.start.prefix_queries, self.end.prefix_queries)

    @property
    def prefix_hits(self) -> float | None:
        """Prompt tokens found there."""
        return _grown(self.start.prefix_hits, self.end.prefix_hits)


def _grown(start: float | None, end: float | None) -> float | None:
    """Difference of a counter; None if one is missing, or if it fell: the server restarted."""
    if start is None or end is None or end < start:
        return None
    return end - start
