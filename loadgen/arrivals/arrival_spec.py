"""Options of arrivals."""

from dataclasses import dataclass
from typing import Literal

from loadgen import option_values
from loadgen.arrivals.rate_shape import CONCURRENCY_FORMS, RATE_FORMS
from startup.typed_options import option

Gaps = Literal["poisson", "constant", "gamma"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ArrivalSpec:
    """Recorded times (neither rate nor concurrency), an open loop, or a closed one.

    `rate` and `concurrency` are as written: see `loadgen.arrivals.rate_shape`.
    """

    GROUP = (
        "arrivals: without --rate or --concurrency a trace is sent at its own times;\n"
        "times are the server's (emulated, if it keeps such a clock), but for --wall-time"
    )

    rate: str | None = option(
        None, f"sessions per second: {RATE_FORMS}", metavar="R", one_of="loop"
    )
    concurrency: str | None = option(
        None,
        f"closed loop, so many sessions in flight: {CONCURRENCY_FORMS}",
        metavar="N",
        one_of="loop",
    )
    speedup: float = option(
        1.0, "send at the recorded times, X times as fast", type=option_values.above_zero
    )
    gaps: Gaps = option(
        "poisson", "gaps at a rate: exponential, even, or gamma distributed", "--arrivals"
    )
    burstiness: float = option(
        1.0,
        "shape of the gamma gaps, as in vLLM's own tool: their CV is 1 / sqrt(K); below 1 burstier "
        "than Poisson",
        type=option_values.above_zero,
        metavar="K",
    )
    duration_s: float | None = option(
        None,
        "begin no session after TIME (default: when the workload is at its end)",
        type=option_values.some_duration_s,
        metavar="TIME",
    )
    start_s: float = option(
        0.0, "begin so long after the run's start", type=option_values.duration_s, metavar="TIME"
    )
    wall_time: bool = option(
        False, "rates and times are in wall seconds, whatever the server's clock"
    )
    max_in_flight: int | None = option(
        None,
        "most requests under way at once; more wait, and are counted (default: 512, or the "
        "concurrency if that is more)",
        type=option_values.count,
    )
