"""The server's own clock and meters, read from its `/metrics` page before and after a run.

A server on emulated hardware says how its time relates to the wall, and counts energy in emulated
time. A server that has no such metrics is measured in wall time, and its energy is unknown: that
is an answer, not an error. The names are those that UltraServe exports; they are repeated here
because a load generator knows a server by its wire alone.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

import aiohttp
from prometheus_client.parser import text_string_to_metric_families

from loadgen.errors import ServerError

METRICS_TIMEOUT_S: Final = 10.0

_PREFIX: Final = "ultraserve_"
_INFO: Final = "ultraserve_info"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerReading:
    """One look at the server; None for what it does not export.

    `dilation` is wall seconds per emulated second; `info` says what is emulated; the others are
    totals since the server's start, in emulated time, and the size of what it emulates. `problem`
    is empty, or says why there was no page to read.
    """

    dilation: float | None = None
    emulated_s: float | None = None
    lag_s: float | None = None
    chip_joules: float | None = None
    facility_joules: float | None = None
    provisioned_watts: float | None = None
    chips: float | None = None
    info: Mapping[str, str] = field(default_factory=dict)
    problem: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerWindow:
    """Two readings, and what lies between them; None where either lacks it."""

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
        """True if the server's clock was changed in between: no one dilation then fits the run."""
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


def _grown(start: float | None, end: float | None) -> float | None:
    """Difference of a counter; None if one is missing, or if it fell: the server restarted."""
    if start is None or end is None or end < start:
        return None
    return end - start


def parse_metrics(text: str) -> ServerReading:
    """Pick a reading out of a page in Prometheus' text format; raises ValueError if it is not one.

    Of a metric with several series, the first counts.
    """
    # Only our lines are parsed: a page of hundreds of others costs nothing and cannot break it.
    ours = (line for line in text.splitlines() if _PREFIX in line[: len(_PREFIX) + 8])
    values: dict[str, float] = {}
    info: dict[str, str] = {}
    for family in text_string_to_metric_families("\n".join(ours) + "\n"):
        for sample in family.samples:
            if sample.name == _INFO and not info:
                info = dict(sample.labels)
            elif math.isfinite(sample.value):  # NaN is how an exporter says that it does not know
                values.setdefault(sample.name.removeprefix(_PREFIX), sample.value)
    return ServerReading(
        dilation=values.get("clock_dilation"),
        emulated_s=values.get("emulated_seconds_total"),
        lag_s=values.get("lag_seconds_total"),
        chip_joules=values.get("chip_energy_joules_total"),
        facility_joules=values.get("facility_energy_joules_total"),
        provisioned_watts=values.get("provisioned_watts"),
        chips=values.get("chips"),
        info=info,
    )


async def read_server(
    session: aiohttp.ClientSession, url: str, *, must_answer: bool = False
) -> ServerReading:
    """Read the server's metrics; a server without the page gives a reading with a problem.

    With `must_answer` a page that is there and fails or is late is an error too: a busy server that
    keeps a clock must not be measured as one that keeps none. Raises ServerError then, when the
    page is there and cannot be read, and for a virtual clock: such time jumps, and what a client on
    the wall measures of it means nothing.
    """
    address = f"{url}/metrics"
    try:
        async with session.get(
            address, timeout=aiohttp.ClientTimeout(total=METRICS_TIMEOUT_S)
        ) as response:
            if response.status >= 500 and must_answer:
                raise ServerError(url=address, reason=f"status {response.status}")
            if response.status != 200:
                return ServerReading(problem=f"status {response.status}")
            reading = parse_metrics(await response.text())
    except TimeoutError as error:
        problem = f"no answer within {METRICS_TIMEOUT_S:g} s"
        if must_answer:
            raise ServerError(url=address, reason=problem) from error
        return ServerReading(problem=problem)
    except (aiohttp.ClientError, OSError) as error:
        return ServerReading(problem=f"cannot be reached: {error}")
    except ValueError as error:
        raise ServerError(url=address, reason=f"not Prometheus text: {error}") from error
    if reading.dilation is not None and not reading.dilation > 0:
        reason = "the server's time is virtual; a load over a socket needs a real or dilated clock"
        raise ServerError(url=address, reason=reason)
    return reading
