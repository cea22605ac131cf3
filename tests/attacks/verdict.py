"""Whether a server stood an attack: a pure function of the measurements.

Latencies are corrected for coordinated omission: a closed-loop client held up for a second counts
each request it would have sent meanwhile (as HdrHistogram's `recordValueWithExpectedInterval`), or
one stall would be one bad answer among hundreds, invisible to a p99.
"""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

MEGABYTE: Final = 1_000_000
GROWTH_BYTES_MAX: Final = 100 * MEGABYTE
"""Of any client without a key."""

KEYED_GROWTH_BYTES_MAX: Final = 200 * MEGABYTE
"""Of any key."""

KEPT_BYTES_MAX: Final = 25 * MEGABYTE
"""Allowed growth GIVEN_BACK_WALL_S later: an allocator's fragments; *assumed*."""

GIVEN_BACK_WALL_S: Final = 60.0
TRIALS_MAX: Final = 3
P99_RATIO_MAX: Final = 2.0
SAMPLES_MIN: Final = 20
"""Of a baseline: fewer have no meaningful p99."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """The honest client's corrected latencies over one protocol.

    Attributes:
        baselines_s: beside a harmless load, a window before each attack on this server; the last is
            this attack's.
        attacked_s: during the attack.
    """

    protocol: str
    baselines_s: Sequence[Sequence[float]]
    attacked_s: Sequence[float]

    @property
    def baseline_p99_s(self) -> float:
        """The larger of the last window's and the median window's.

        One window has few answers, so its p99 may be small by chance; and one of many was measured
        while the machine was busy.
        """
        windows_s = [p99_s(window_s) for window_s in self.baselines_s]
        return max(windows_s[-1], statistics.median(windows_s)) if windows_s else math.inf

    @property
    def p99_ratio(self) -> float:
        """The p99 under attack over that beside a harmless load."""
        return p99_s(self.attacked_s) / self.baseline_p99_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One attack on one server.

    Attributes:
        growth_bytes: largest growth of the server's processes since before the first trial.
        kept_bytes: growth since before this trial, GIVEN_BACK_WALL_S after its end or
            once small enough.
        served: the honest client's two protocols; empty if latency is not measured.
    """

    needs_key: bool
    growth_bytes: int
    kept_bytes: int
    given_back_s: float
    served: Sequence[Served] = ()
    unreasoned: Sequence[str] = ()
    faults: Sequence[str] = ()
    server_lives: bool = True


def corrected(latencies_s: Sequence[float], interval_s: float) -> list[float]:
    """Latencies, with those of the requests that a held-up closed loop did not send.

    `interval_s` is the undisturbed time between two requests. An infinite latency is a refused or
    broken honest request and stands for itself.
    """
    if not interval_s > 0:
        raise ValueError(f"interval_s: expected a positive number, got {interval_s}")
    found = []
    for latency_s in latencies_s:
        found.append(latency_s)
        missing_s = latency_s - interval_s
        while math.isfinite(missing_s) and missing_s >= interval_s:
            found.append(missing_s)
            missing_s -= interval_s
    return found


def p99_s(latencies_s: Sequence[float]) -> float:
    """The smallest latency that at least 99 % do not exceed; infinite without any."""
    if not latencies_s:
        return math.inf
    return sorted(latencies_s)[math.ceil(0.99 * len(latencies_s)) - 1]


def slowed(measured: Measured) -> list[str]:
    """Latency failures, a line each."""
    found = []
    for served in measured.served:
        answers = sum(map(len, served.baselines_s))
        if answers < SAMPLES_MIN:
            found.append(
                f"no baseline: {answers} answers of {served.protocol}, {SAMPLES_MIN} needed"
            )
        elif not math.isfinite(served.baseline_p99_s):
            found.append(f"an honest client over {served.protocol} was refused before the attack")
        elif not served.p99_ratio <= P99_RATIO_MAX:
            ratio = f"{served.p99_ratio:.1f} times its baseline, {P99_RATIO_MAX:g} may be"
            found.append(f"an honest client's p99 over {served.protocol} is {ratio}")
    return found


def broken(measured: Measured) -> list[str]:
    """A trial's definite failures (all but latency and kept memory), a line each."""
    found = []
    if not measured.server_lives:
        found.append("the server ended")
    limit_bytes = KEYED_GROWTH_BYTES_MAX if measured.needs_key else GROWTH_BYTES_MAX
    if measured.growth_bytes > limit_bytes:
        grown, limit = measured.growth_bytes / MEGABYTE, limit_bytes / MEGABYTE
        found.append(f"memory grew by {grown:,.0f} MB, {limit:g} may be")
    found += [f"5xx without a reason: {answer}" for answer in measured.unreasoned]
    found += measured.faults
    return found


def kept(measured: Measured) -> list[str]:
    """Memory not given back, in a line; includes what a first use loads, but only once."""
    if measured.kept_bytes <= KEPT_BYTES_MAX:
        return []
    size = measured.kept_bytes / MEGABYTE
    return [f"{size:,.0f} MB were not given back in {measured.given_back_s:.0f} s"]


def is_decided(trials: Sequence[Measured]) -> bool:
    """Whether these trials of one attack on one server suffice.

    A definite failure decides. Latency is noise unless two trials of three have it; kept memory is
    a first use's unless the next trial keeps as much again.
    """
    if len(trials) == TRIALS_MAX or broken(trials[-1]):
        return True
    late = sum(bool(slowed(trial)) for trial in trials)
    late_is_decided = late == 0 or late >= 2 or len(trials) - late >= 2
    return late_is_decided and (not kept(trials[-1]) or (len(trials) > 1 and keeps(trials)))


def keeps(trials: Sequence[Measured]) -> bool:
    """Whether memory was kept repeatedly, or in the only trial."""
    return all(kept(trial) for trial in trials[-2:])


def failures(trials: Sequence[Measured]) -> list[str]:
    """Failed criteria of deciding trials; empty if the server stood them."""
    found = [line for trial in trials for line in broken(trial)]
    if keeps(trials):
        found += kept(trials[-1])
    late = [trial for trial in trials if slowed(trial)]
    if 2 * len(late) > len(trials):
        found += slowed(late[-1])
    return list(dict.fromkeys(found))
