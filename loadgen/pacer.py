"""When requests are sent. A pacer is asked and answers; it has no clock and sends nothing.

Times are nanoseconds since the attack's start, in whichever time the rate was given in: emulated
time unless the user asked for wall time. The attacker converts.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Int64s = NDArray[np.int64]


class Pacer(Protocol):
    """Decides when the next request is due."""

    def pace(self, *, elapsed_ns: int, sent: int, in_flight: int) -> int | None:
        """Say when the request after the `sent` that have gone is due, in ns since the start.

        The time may lie before `elapsed_ns`: the request is then late, and goes at once. None
        means that it is not due before one of those in flight has ended.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Schedule:
    """An open loop: request i is due at `due_ns[i]`, however the earlier ones fare.

    Raises ValueError unless `due_ns` is int64[requests], not negative, and never falls.
    """

    due_ns: Int64s

    def __post_init__(self) -> None:
        due_ns = self.due_ns
        if due_ns.ndim != 1 or due_ns.dtype != np.int64:
            raise ValueError(f"due_ns is int64[requests], not {due_ns.dtype}{due_ns.shape}")
        if due_ns.size and (due_ns[0] < 0 or (np.diff(due_ns) < 0).any()):
            raise ValueError("requests are due in order, from the start on")

    def pace(self, *, elapsed_ns: int, sent: int, in_flight: int) -> int | None:  # noqa: ARG002
        """Due when the schedule says, whatever has happened."""
        return int(self.due_ns[sent])


@dataclass(frozen=True, slots=True, kw_only=True)
class ClosedLoop:
    """A closed loop: `concurrency` requests in flight, the next when one of them has ended."""

    concurrency: int

    def __post_init__(self) -> None:
        if self.concurrency < 1:
            raise ValueError(f"concurrency is {self.concurrency}, not at least 1")

    def pace(self, *, elapsed_ns: int, sent: int, in_flight: int) -> int | None:  # noqa: ARG002
        """Due now while there is room, otherwise after a reply."""
        return elapsed_ns if in_flight < self.concurrency else None


def recorded(arrivals_ns: Sequence[int], *, speedup: float) -> Schedule:
    """Send at the recorded times, `speedup` times as fast, the first at once."""
    arrivals = np.asarray(arrivals_ns, dtype=np.int64)
    offsets = (arrivals - arrivals[:1]) / speedup
    return Schedule(due_ns=np.rint(offsets).astype(np.int64))


def constant_rate(requests: int, *, rate_per_s: float) -> Schedule:
    """Send at even gaps: request i is due at i / rate."""
    return Schedule(due_ns=np.rint(np.arange(requests) * (1e9 / rate_per_s)).astype(np.int64))


def poisson(requests: int, *, rate_per_s: float, seed: int) -> Schedule:
    """Send the first at once, the others at gaps drawn from the exponential of mean 1 / rate."""
    gaps_ns = np.random.default_rng([seed, 1]).exponential(1e9 / rate_per_s, size=requests)
    gaps_ns[:1] = 0.0
    return Schedule(due_ns=np.rint(np.cumsum(gaps_ns)).astype(np.int64))
