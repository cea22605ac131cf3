"""Options of arrivals."""

from dataclasses import dataclass
from typing import Literal

Gaps = Literal["poisson", "constant", "gamma"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ArrivalSpec:
    """Recorded times (neither a rate nor a concurrency), an open loop, or a closed one.

    `rate` and `concurrency` are as written: see `loadgen.arrivals.rate_shape`. `burstiness` is the
    shape of the gamma distribution of gaps (1: Poisson; less: burstier), as in vLLM's own tool.
    Times are the server's, or wall times with `wall_time`. `start_s` is when the class begins.
    """

    rate: str | None = None
    gaps: Gaps = "poisson"
    burstiness: float = 1.0
    concurrency: str | None = None
    speedup: float = 1.0
    duration_s: float | None = None
    start_s: float = 0.0
    wall_time: bool = False
    max_in_flight: int | None = None
