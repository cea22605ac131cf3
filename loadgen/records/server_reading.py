"""Two readings of a server's clock and meters, and their difference.

A server on emulated hardware exports its dilation, and energy in emulated time; any other is
measured in wall time, without energy.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

FOLLOWING_CLOCK: Final = "auto"
"""The `info` of a server whose dilation follows the load."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerReading:
    """One reading; None for metrics that the server does not export.

    `dilation` is wall seconds per emulated second; `info` names the emulated machine; the others
    are totals since the server's start, in emulated time, and the machine's size. Of vLLM's totals:
    `queue_s` waited in the engine's queue (the run's time) by `queued_requests`, and prompt tokens
    looked up and found in the prefix cache. `problem` says why there was no page, or is empty.
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


COUNTERS: Final = (
    *("emulated_s", "lag_s", "chip_joules", "facility_joules"),
    *("queue_s", "queued_requests", "prefix_queries", "prefix_hits"),
)
"""Fields that grow as the server works."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerWindow:
    """Two readings around a part of a run."""

    start: ServerReading
    end: ServerReading

    @property
    def emulated(self) -> bool:
        """True if the server keeps emulated time."""
        return self.start.dilation is not None

    @property
    def dilation_changed(self) -> bool:
        """Whether the dilation changed in between: no single one fits the run."""
        return self.end.dilation is not None and self.end.dilation != self.start.dilation

    def growth(self) -> ServerReading:
        """Growth of each counter; None where a reading lacks it or it fell (a restart)."""
        grown: dict[str, Any] = {}
        for name in COUNTERS:
            start, end = getattr(self.start, name), getattr(self.end, name)
            grown[name] = None if start is None or end is None or end < start else end - start
        return ServerReading(**grown)
