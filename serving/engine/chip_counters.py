"""What each chip has done since the engine's start, counted step by step, and in a window of it.

Arrays go by chip of the machine, spares after the partition's. A chip draws idle power all the
time; what it drew above that is counted here, so that idle time needs no counting. Samples of the
totals are taken where steps begin, at least a second apart: by up to two seconds and a step, where
a rest of less than a second follows. So much too early may a window begin, unless it begins in a
rest.
"""

from collections import deque
from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from emulator.specs.partition import Partition
from emulator.specs.seating import VACANT
from emulator.ultraserver.step_cost import StepCost
from emulator.units import NS_PER_S
from serving.wire.hardware import WINDOW_S

Float64s = NDArray[np.float64]
Int64s = NDArray[np.int64]

_SAMPLE_NS: Final = NS_PER_S
_BUSY, _FLOPS, _HBM, _LINKS, _ABOVE_IDLE = range(5)
_ROWS: Final = 5
"""Before those of the engines: busy ns, flops, HBM bytes, link bytes, joules above idle."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ChipCounts:
    """Of every chip, each array [chips] but `engine_busy_ns` [engines, chips]."""

    engines: tuple[str, ...]
    engine_busy_ns: Float64s
    busy_ns: Float64s
    flops: Float64s
    hbm_bytes: Float64s
    link_bytes: Float64s
    above_idle_joules: Float64s


class ChipCounters:
    """Totals, and samples of them that reach back at least `WINDOW_S`.

    Invariants: totals never fall; every step is in them once.
    """

    def __init__(
        self, partition: Partition, engines: Collection[str], *, start_ns: int = 0
    ) -> None:
        chips = partition.chips + partition.spares
        self._partition = partition
        self._engines = tuple(engines)
        self._totals: Float64s = np.zeros((_ROWS + len(self._engines), chips))
        self._beyond: Float64s = np.zeros(chips)
        self._lost: NDArray[np.bool_] = np.zeros(chips, dtype=np.bool_)
        self._unpowered_ns: Float64s = np.zeros(chips)  # until `_lost_ns`
        self._lost_ns = start_ns
        self._samples: deque[tuple[int, Float64s]] = deque([(start_ns, self._totals.copy())])
        self._end_ns = start_ns
        self._seats: Int64s | None = None
        self._sitting = self._standing = np.zeros(0, dtype=np.int64)

    def add(
        self, cost: StepCost, seats: Int64s, *, begin_ns: int, end_ns: int, idle_watts: float
    ) -> None:
        """Count a step on the chips in `seats`, int64[positions], VACANT where none sits."""
        if begin_ns - self._samples[-1][0] >= _SAMPLE_NS:
            totals = self._totals.copy()
            if begin_ns - self._end_ns >= _SAMPLE_NS:
                self._samples.append((self._end_ns, totals))  # the same array: a rest
            self._samples.append((begin_ns, totals))
            self._forget(begin_ns)
        self._end_ns = end_ns
        seconds = cost.duration_ns / NS_PER_S
        above: Float64s = (cost.chip_watts - idle_watts) * seconds  # [positions]
        busy_ns = np.repeat(cost.rank_ns, self._partition.tp)
        rows: Float64s = np.array(
            [
                *(busy_ns, cost.flops, cost.hbm_bytes, cost.link_bytes, above),
                *(cost.engine_ns[name] for name in self._engines),
            ]
        )  # [rows, positions]
        if seats is not self._seats:
            self._sit(seats)
        if len(self._sitting) == len(seats):
            self._totals[:, seats] += rows
            return
        sitting = self._sitting
        self._totals[:, seats[sitting]] += rows[:, sitting]
        # A position without a chip does nothing; what rounding leaves of its power goes to the
        # chips without a seat.
        vacant = np.setdiff1d(np.arange(len(seats)), sitting)
        self._totals[_ABOVE_IDLE, self._standing] += above[vacant].sum() / len(self._standing)

    def _sit(self, seats: Int64s) -> None:
        self._seats = seats
        self._sitting = np.flatnonzero(seats != VACANT)
        self._standing = np.setdiff1d(np.arange(self._totals.shape[1]), seats)

    def add_beyond(self, joules: float, chips: Collection[int] | None = None) -> None:
        """Count what `chips` drew beyond steps and idle power; all chips alike without them."""
        if chips is None or not len(chips):
            self._beyond += joules / len(self._beyond)
        else:
            self._beyond[list(chips)] += joules / len(chips)

    def lose(self, lost: NDArray[np.bool_], now_ns: int) -> None:
        """The chips in `lost`, [chips], draw nothing from now on; the others do."""
        self._unpowered_ns = self._unpowered_until(now_ns)
        self._lost, self._lost_ns = lost.copy(), now_ns

    def unpowered_s(self, now_ns: int) -> Float64s:
        """Seconds in which each chip was lost, and drew no idle power, [chips]."""
        return self._unpowered_until(now_ns) / NS_PER_S

    def _unpowered_until(self, now_ns: int) -> Float64s:
        return self._unpowered_ns + self._lost * (now_ns - self._lost_ns)

    def _forget(self, now_ns: int) -> None:
        while len(self._samples) > 1 and now_ns - self._samples[1][0] >= WINDOW_S * NS_PER_S:
            self._samples.popleft()

    @property
    def totals(self) -> ChipCounts:
        """Since the start; `above_idle_joules` with all that was drawn beyond steps."""
        rows = self._totals.copy()
        rows[_ABOVE_IDLE] += self._beyond
        return self._counts(rows)

    def window(self, now_ns: int) -> tuple[float, ChipCounts]:
        """The seconds of the window that ends now, and what chips did in it, steps alone."""
        whole_ns = int(WINDOW_S * NS_PER_S)
        samples = [*self._samples, (self._end_ns, self._totals), (now_ns, self._totals)]
        first = max(
            (place for place, (at_ns, _) in enumerate(samples) if now_ns - at_ns >= whole_ns),
            default=0,
        )
        begin_ns, before = samples[first]
        rests = first + 1 < len(samples) and samples[first + 1][1] is before
        if rests and now_ns - begin_ns > whole_ns:  # it need not reach back to where the rest began
            begin_ns = now_ns - whole_ns
        return (now_ns - begin_ns) / NS_PER_S, self._counts(self._totals - before)

    def _counts(self, rows: Float64s) -> ChipCounts:
        return ChipCounts(
            engines=self._engines,
            engine_busy_ns=rows[_ROWS:],
            busy_ns=rows[_BUSY],
            flops=rows[_FLOPS],
            hbm_bytes=rows[_HBM],
            link_bytes=rows[_LINKS],
            above_idle_joules=rows[_ABOVE_IDLE],
        )
