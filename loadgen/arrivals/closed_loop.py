"""Closed loops: a fixed number of concurrent sessions; one's end starts the next."""

from dataclasses import dataclass, replace
from typing import Self

import numpy as np

from loadgen.arrivals.piecewise_linear import PiecewiseLinear
from loadgen.errors import OptionError


@dataclass(frozen=True, slots=True, kw_only=True)
class ClosedLoop:
    """`concurrency` sessions under way, possibly changing over time; fractions are cut off.

    Workers' even shares add up to the whole at every moment. At most `sessions` begin, none from
    `ends_ns` on. Raises ValueError for a concurrency that begins or ends below 1, OptionError where
    the last worker would end without a share.
    """

    concurrency: PiecewiseLinear
    sessions: int | None = None
    ends_ns: int | None = None
    worker: int = 0
    workers: int = 1

    def __post_init__(self) -> None:
        if min(self.concurrency.rates_per_s) < 1:
            raise ValueError(f"concurrency {self.concurrency.rates_per_s} is not at least 1")
        if not 0 <= self.worker < self.workers:
            raise ValueError(f"worker {self.worker} of {self.workers}")
        last = int(self.concurrency.rates_per_s[-1])
        if self.workers > last:
            raise OptionError(
                "--workers", self.workers, f"at most {last}, at which the concurrency ends"
            )

    def pace(self, *, elapsed_ns: int, sent: int, in_flight: int) -> int | None:  # noqa: ARG002
        """See `Pacer.pace`: now if below the concurrency, else when that rises or after a reply."""
        if self.ends_ns is not None and elapsed_ns >= self.ends_ns:
            return None
        # The worker's share of c is the c' with worker + c' x workers just at or below c.
        wanted = self.worker + 1 + in_flight * self.workers
        if len(self.concurrency.times_s) == 1:
            return elapsed_ns if self.concurrency.rates_per_s[0] >= wanted else None
        return self._first_at_least(wanted, elapsed_ns)

    def part(self, worker: int, workers: int) -> Self:
        """The share of one of `workers`; OptionError if there are too many."""
        assert self.workers == 1, "a part is not parted again"
        sessions = self.sessions
        share = None if sessions is None else len(range(worker, sessions, workers))
        return replace(self, sessions=share, worker=worker, workers=workers)

    def _first_at_least(self, wanted: int, elapsed_ns: int) -> int | None:
        """The first time from `elapsed_ns` on at which the concurrency is `wanted`."""
        times_s, levels = self.concurrency.times_s, self.concurrency.rates_per_s
        now_s = elapsed_ns / 1e9
        if float(self.concurrency.at(np.array(now_s))) >= wanted:
            return elapsed_ns
        for start_s, end_s, low, high in zip(
            times_s, times_s[1:], levels, levels[1:], strict=False
        ):
            if end_s > now_s and low < wanted <= high:
                share = (wanted - low) / (high - low)
                # Rounded up, so that the level is reached when the time has come.
                at_ns = int(np.ceil((start_s + share * (end_s - start_s)) * 1e9))
                return max(at_ns, elapsed_ns)
        return None
