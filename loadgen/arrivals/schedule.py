"""Open loops: sessions due at times independent of replies."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, Self

import numpy as np

from loadgen.arrivals.gaps import RenewalArrivals
from loadgen.arrivals.rate_shape import RateShape
from loadgen.errors import OptionError
from loadgen.records.arrays import Int64s

DUE_S_MAX: Final = 1e9


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ArrivalSchedule:
    """Session i is due at `due_ns[i]`.

    `rate` is the rate they were drawn for, None for recorded times. Raises ValueError unless
    `due_ns` is int64[sessions], not negative, and never falls.
    """

    due_ns: Int64s
    rate: RateShape | None = None

    def __post_init__(self) -> None:
        due_ns = self.due_ns
        if due_ns.ndim != 1 or due_ns.dtype != np.int64:
            raise ValueError(f"due_ns is int64[sessions], not {due_ns.dtype}{due_ns.shape}")
        if due_ns.size and (due_ns[0] < 0 or (np.diff(due_ns) < 0).any()):
            raise ValueError("sessions are due in order, from the start on")

    @property
    def sessions(self) -> int | None:
        """The number of times."""
        return int(self.due_ns.size)

    @property
    def ends_ns(self) -> int | None:
        """None: a late session is still sent, and shows as late."""
        return None

    def pace(self, *, elapsed_ns: int, sent: int, in_flight: int) -> int | None:  # noqa: ARG002
        """The scheduled time."""
        return int(self.due_ns[sent])

    def part(self, worker: int, workers: int) -> Self:
        """Every `workers`-th time from `worker` on."""
        return replace(self, due_ns=self.due_ns[worker::workers])


def by_rate(
    arrivals: RenewalArrivals, rate: RateShape, *, sessions: int | None, duration_s: float | None
) -> ArrivalSchedule:
    """Stretch `arrivals`, one per unit, to `rate`, up to `duration_s`.

    Arrival i is due where the rate has summed to it: gaps are short at a high rate and keep their
    spread. At most `sessions` (one of the two is given), fewer where the rate falls to 0 for good.
    Raises OptionError for one that is due after `DUE_S_MAX`.
    """
    if sessions is not None:
        due_s = rate.inverse(arrivals.next(sessions))
    else:
        assert duration_s is not None, "a schedule ends by a number or by a time"
        due_s = rate.inverse(arrivals.until(float(rate.cumulative(np.array([duration_s]))[0])))
    due_s = due_s[due_s < (np.inf if duration_s is None else duration_s)]
    if due_s.size and due_s[-1] > DUE_S_MAX:
        expected = f"one at which all sessions begin within {DUE_S_MAX:g} s, some thirty years"
        raise OptionError("--rate", f"{sessions} sessions in {due_s[-1]:.3g} s", expected)
    # Rounding within a shape's inverse may swap two times that are a nanosecond apart.
    due_ns = np.maximum.accumulate(np.rint(due_s * 1e9).astype(np.int64))
    return ArrivalSchedule(due_ns=due_ns, rate=rate)


def recorded(
    arrivals_ns: Sequence[int], *, speedup: float = 1.0, duration_s: float | None = None
) -> ArrivalSchedule:
    """Send at the recorded times, `speedup` times as fast, the first at once.

    With `duration_s`, only those then due before it. Raises ValueError for recorded times that
    fall.
    """
    arrivals = np.asarray(arrivals_ns, dtype=np.int64)
    due_ns = np.rint((arrivals - arrivals[:1]) / speedup).astype(np.int64)
    if duration_s is not None:
        due_ns = due_ns[due_ns < duration_s * 1e9]
    return ArrivalSchedule(due_ns=due_ns)
