"""The server's clock and meters, read from `/metrics` before and after a run.

The names exported by UltraServe and vLLM are repeated here: a load generator knows a server by its
wire alone. See `loadgen.records.server_reading`.
"""

import math
from collections.abc import Mapping
from typing import Any, Final

import aiohttp
from prometheus_client.parser import text_string_to_metric_families

from loadgen.clients.connection_problem import PROBLEMS, connect_words
from loadgen.clients.question import read_answer
from loadgen.clients.server_json import short_line
from loadgen.errors import ServerError
from loadgen.records.server_reading import ServerReading

METRICS_TIMEOUT_S: Final = 10.0
BUSY_STATUSES: Final = (408, 425, 429)  # timeout, too early, too many: another time it may answer
DILATION_MAX: Final = 1e9  # *assumed*: beyond it, up or down, no load would ever end

_INFO: Final = "ultraserve_info"
_OURS: Final[Mapping[str, str]] = {
    "ultraserve_clock_dilation": "dilation",
    "ultraserve_emulated_seconds_total": "emulated_s",
    "ultraserve_lag_seconds_total": "lag_s",
    "ultraserve_chip_energy_joules_total": "chip_joules",
    "ultraserve_facility_energy_joules_total": "facility_joules",
    "ultraserve_provisioned_watts": "provisioned_watts",
    "ultraserve_chips": "chips",
}
_SUMMED: Final = frozenset({"chip_joules", "facility_joules", "provisioned_watts", "chips"})
"""What engines behind one address have together; their clocks are alike."""

# vLLM's own totals, summed over its engines. On a server with a clock of its own vLLM's queue time
# is in that clock's seconds, elsewhere in the wall's: in both cases the run's time.
_VLLM: Final[Mapping[str, str]] = {
    "vllm:request_queue_time_seconds_sum": "queue_s",
    "vllm:request_queue_time_seconds_count": "queued_requests",
    "vllm:prefix_cache_queries_total": "prefix_queries",
    "vllm:prefix_cache_hits_total": "prefix_hits",
}
_LINES: Final = tuple(
    f"{mark}{name}"
    for mark in ("", "# HELP ", "# TYPE ")
    for name in (
        "ultraserve_",
        *(name.removesuffix("_sum").removesuffix("_total") for name in _VLLM),
    )
    if not name.endswith("_count")
)


def parse_metrics(text: str) -> ServerReading:
    """Parse a page in Prometheus' text format; raises ValueError for another.

    Several series are those of several engines: of vLLM's totals, and of energy, power and chips,
    their sum counts, of the clock the first.
    """
    # Only these lines are parsed: a page of hundreds of others costs nothing and cannot break it.
    ours = (line for line in text.splitlines() if line.startswith(_LINES))
    values: dict[str, Any] = {}
    info: dict[str, str] = {}
    for family in text_string_to_metric_families("\n".join(ours) + "\n"):
        for sample in family.samples:
            if sample.name == _INFO and not info:
                info = {short_line(name): short_line(said) for name, said in sample.labels.items()}
            elif not math.isfinite(sample.value):  # an exporter's way to say that it does not know
                continue
            elif sample.name in _VLLM:
                name = _VLLM[sample.name]
                values[name] = values.get(name, 0.0) + sample.value
            elif (ours_name := _OURS.get(sample.name)) in _SUMMED:
                values[ours_name] = values.get(ours_name, 0) + sample.value
            elif ours_name is not None:
                values.setdefault(ours_name, sample.value)
    return ServerReading(**values, info=info)


async def read_server(
    session: aiohttp.ClientSession, url: str, *, must_answer: bool = False
) -> ServerReading:
    """Read the server's metrics; without a page, the reading has a `problem`.

    With `must_answer` a page that fails, breaks off or is late raises ServerError: a busy server
    with a clock must not be measured as one without. A refusal (401, 403, 404 and the like) means
    no page. Always raises it for an unreadable page and for a virtual clock, whose jumps make wall
    measurements meaningless.
    """
    address = f"{url}/metrics"
    try:
        async with session.get(
            address, timeout=aiohttp.ClientTimeout(total=METRICS_TIMEOUT_S)
        ) as response:
            busy = response.status >= 500 or response.status in BUSY_STATUSES
            if busy and must_answer:
                raise ServerError(url=address, reason=f"status {response.status}")
            if response.status != 200:
                return ServerReading(problem=f"status {response.status}")
            reading = parse_metrics((await read_answer(response)).decode())
    except TimeoutError as error:
        problem = f"no answer within {METRICS_TIMEOUT_S:g} s"
        if must_answer:
            raise ServerError(url=address, reason=problem) from error
        return ServerReading(problem=problem)
    except PROBLEMS as error:
        problem = f"cannot be reached: {connect_words(error)}"
        if must_answer:
            raise ServerError(url=address, reason=problem) from error
        return ServerReading(problem=problem)
    except (ValueError, LookupError) as error:  # both are what the parser raises
        raise ServerError(url=address, reason=f"not Prometheus text: {error}") from error
    if reading.dilation is not None and not reading.dilation > 0:
        reason = "the server's time is virtual; a load over a socket needs a real or dilated clock"
        raise ServerError(url=address, reason=reason)
    if reading.dilation is not None and not 1 / DILATION_MAX < reading.dilation < DILATION_MAX:
        raise ServerError(url=address, reason=f"a dilation of {reading.dilation:g} is no clock's")
    return reading
