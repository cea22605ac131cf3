"""Whether the load generator itself was too slow: busy, or late."""

from collections.abc import Iterator
from typing import Final

from loadgen.measures.run_measures import RunMeasures

BUSY_SHARE: Final = 0.9
"""Of a core. Above it a loop queues its own work: at 0.9 the wait is 4.5 times the work, for even
work at random times (rho / (2 (1 - rho)), the M/D/1 queue).
"""

OWN_WORK_SHARE: Final = 0.5
"""Of a core. A late loop that is less busy waits for something other than its own work: it is idle
half the time, and the mean wait for even work is half that work.
"""

LOOP_LAG_MS: Final = 2.0
"""Times should be right within 1 ms or 2 %; the loop's timers add up to 1 ms."""
LOOP_LAG_SHARE: Final = 0.02


def is_busy(measures: RunMeasures) -> bool:
    """Whether a process of the load generator had too little of its core left."""
    return measures.cpu_share is not None and measures.cpu_share >= BUSY_SHARE


def is_late(measures: RunMeasures) -> bool:
    """Whether its event loop was too late for its times to be right."""
    lag_ms = measures.loop_lag_p99_ms
    if lag_ms is None:
        return False
    ttft = measures.total.distributions.get("ttft_from_send_ms")
    wall_ms = 0.0 if ttft is None else ttft.percentiles[99.0].value * measures.dilation
    return lag_ms > max(LOOP_LAG_MS, LOOP_LAG_SHARE * wall_ms)


def client_warnings(measures: RunMeasures) -> Iterator[str]:
    """Yield each problem as a sentence, with its cure."""
    if measures.busy:
        yield (
            f"the load generator used {100 * (measures.cpu_share or 0):.0f} % of a core in its "
            "busiest process: it may be what is slow; more --workers cure it"
        )
    if measures.late:
        share = measures.cpu_share or 0.0
        cause = (
            f"with {100 * share:.0f} % of a core in use: other programs, or the machine, held it "
            "up; cores that nothing else uses cure it"
            if share < OWN_WORK_SHARE
            else "by its own work; more --workers cure it"
        )
        yield (
            f"the load generator's event loop was {measures.loop_lag_p99_ms:.1f} wall ms late at "
            f"p99, {cause}. Latencies are too long by up to that"
        )
