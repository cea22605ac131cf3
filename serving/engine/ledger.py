"""Work and joules of each chip since the engine's start: the one account of both.

Arrays go by chip of the machine, spares last. A chip that is not lost draws idle power all the
time; rows count joules above that, so idle time needs no counting. Facility joules are the chips'
watts of each interval through the power model.

Totals are sampled where steps begin, at least a second apart: unless it begins in a rest, a window
may begin up to two seconds and a step early.
"""

from collections import deque
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from emulator.specs.partition import Partition
from emulator.specs.seating import VACANT
from emulator.ultraserver.step_cost import ENGINE_NAMES, StepCost
from emulator.units import NS_PER_S
from serving.wire.machine_snapshot import WINDOW_S

Float64s = NDArray[np.float64]
Int64s = NDArray[np.int64]

FIGURES: Final[Mapping[str, Callable[[StepCost, Partition], NDArray[Any]]]] = {
    "busy_ns": lambda cost, partition: np.repeat(cost.rank_ns, partition.tp),
    "flops": lambda cost, _: cost.flops,
    "hbm_bytes": lambda cost, _: cost.hbm_bytes,
    "link_bytes": lambda cost, _: cost.link_bytes,
    "dispatched_bytes": lambda cost, _: cost.dispatched_bytes,
}
"""The ledger's schema: a step's contribution to each position's chip, [positions], by name."""

_SAMPLE_NS: Final = NS_PER_S
_ABOVE_IDLE: Final = len(FIGURES)  # the row of joules above idle
_ROWS: Final = _ABOVE_IDLE + 1  # before those of the chips' engines
_PLACES: Final = {name: row for row, name in enumerate(FIGURES)}

_CHARGE_S: Final = 1_000.0
"""Seconds over which a charge counts as drawn: the facility then adds what it adds near idle, even
where its parts are not linear."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LedgerFigures:
    """Of every chip: `rows`, [rows, chips]: the schema's, joules above idle, busy ns of engines."""

    rows: Float64s
    engines: tuple[str, ...]

    def __getitem__(self, name: str) -> Float64s:
        """One figure of the schema, [chips]."""
        figure: Float64s = self.rows[_PLACES[name]]
        return figure

    @property
    def above_idle_joules(self) -> Float64s:
        """Joules of steps above idle power, and of charges since the start, [chips]."""
        joules: Float64s = self.rows[_ABOVE_IDLE]
        return joules

    @property
    def engine_busy_ns(self) -> Float64s:
        """[engines, chips]."""
        return self.rows[_ROWS:]


class Ledger:
    """Totals of a machine's chips, and samples of them that reach back at least `WINDOW_S`.

    `idle_watts` are a chip's; `facility_watts` maps the chips' sum to the facility's. Invariants:
    totals never fall; every nanosecond, step and charge is counted once, a step at its own watts,
    time between steps at idle; the chips' joules sum up to the machine's.
    """

    def __init__(
        self,
        partition: Partition,
        *,
        idle_watts: float,
        facility_watts: Callable[[float], float],
        start_ns: int = 0,
        engines: Collection[str] = ENGINE_NAMES,
    ) -> None:
        chips = partition.chips + partition.spares
        self._partition = partition
        self._idle_watts = idle_watts
        self._facility_watts = facility_watts
        self._engines = tuple(engines)
        self._totals: Float64s = np.zeros((_ROWS + len(self._engines), chips))
        self._charged: Float64s = np.zeros(chips)
        self._lost: NDArray[np.bool_] = np.zeros(chips, dtype=np.bool_)
        self._unpowered_ns: Float64s = np.zeros(chips)  # until `_lost_ns`
        self._lost_ns = start_ns
        self._start_ns = start_ns
        self.end_ns = start_ns  # of the last step
        self._facility_joules = 0.0  # until the end of the last step
        self._samples: deque[tuple[int, Float64s]] = deque([(start_ns, self._totals.copy())])
        self._seats: Int64s | None = None
        self._sitting = self._standing = np.zeros(0, dtype=np.int64)
        self.step_joules = (0.0, 0.0)

    def add_step(self, cost: StepCost, seats: Int64s, *, begin_ns: int, end_ns: int) -> None:
        """Count a step on the chips in `seats`, int64[positions], VACANT where none sits.

        Time since the last step beyond `cost.duration_ns` is idle. Sets `step_joules`, without
        pauses, of the chips (spares too) and of the facility.
        """
        seconds = cost.duration_ns / NS_PER_S
        idle_s = (end_ns - self.end_ns) / NS_PER_S - seconds
        standing = self._totals.shape[1] - int(self._lost.sum()) - len(cost.chip_watts)
        watts = float(cost.chip_watts.sum()) + self._idle_watts * standing
        facility_joules = self._facility_watts(watts) * seconds
        self.step_joules = (watts * seconds, facility_joules)
        self._facility_joules += facility_joules + self._facility_idle_watts * idle_s
        self._sample(begin_ns)
        self.end_ns = end_ns
        self._add_rows(cost, seats)

    def _sample(self, begin_ns: int) -> None:
        if begin_ns - self._samples[-1][0] < _SAMPLE_NS:
            return
        totals = self._totals.copy()
        if begin_ns - self.end_ns >= _SAMPLE_NS:
            self._samples.append((self.end_ns, totals))  # the same array: a rest
        self._samples.append((begin_ns, totals))
        while len(self._samples) > 1 and begin_ns - self._samples[1][0] >= WINDOW_S * NS_PER_S:
            self._samples.popleft()

    def _add_rows(self, cost: StepCost, seats: Int64s) -> None:
        above: Float64s = (cost.chip_watts - self._idle_watts) * (cost.duration_ns / NS_PER_S)
        figures = [figure(cost, self._partition) for figure in FIGURES.values()]
        engines = [cost.engine_ns[name] for name in self._engines]
        rows: Float64s = np.array([*figures, above, *engines])  # [rows, positions]
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

    def charge(self, joules: float, chips: Collection[int] | None = None) -> None:
        """Count joules of `chips`, or of all alike, beyond steps and idle power.

        Adds the facility's extra for these watts, not its base load.
        """
        assert joules >= 0.0, joules
        if chips is None or not len(chips):
            self._charged += joules / len(self._charged)
        else:
            self._charged[list(chips)] += joules / len(chips)
        beyond = self._facility_watts(joules / _CHARGE_S) - self._facility_watts(0.0)
        self._facility_joules += beyond * _CHARGE_S

    def lose(self, lost: NDArray[np.bool_], now_ns: int) -> None:
        """From now on the chips in `lost`, [chips], draw nothing, and the others do.

        Later counts apply it from the last step's end on; the difference until now is counted here.
        """
        if np.array_equal(lost, self._lost):
            return
        before_watts = self._facility_idle_watts
        self._unpowered_ns = self._unpowered_until(now_ns)
        self._lost, self._lost_ns = lost.copy(), now_ns
        seconds = (now_ns - self.end_ns) / NS_PER_S
        self._facility_joules += (before_watts - self._facility_idle_watts) * seconds

    @property
    def _facility_idle_watts(self) -> float:
        """Facility watts when no chip computes; lost chips draw nothing."""
        chips = len(self._lost) - int(self._lost.sum())
        return self._facility_watts(self._idle_watts * chips)

    def _unpowered_until(self, now_ns: int) -> Float64s:
        return self._unpowered_ns + self._lost * (now_ns - self._lost_ns)

    def chip_joules(self, now_ns: int) -> Float64s:
        """Joules of each chip until then, after the last step, [chips]."""
        powered_ns = now_ns - self._start_ns - self._unpowered_until(now_ns)
        return self._idle_watts * powered_ns / NS_PER_S + self.totals.above_idle_joules

    def facility_joules(self, now_ns: int) -> float:
        """Joules at the utility's meter until then, after the last step."""
        idle_s = (now_ns - self.end_ns) / NS_PER_S
        return self._facility_joules + self._facility_idle_watts * idle_s

    @property
    def totals(self) -> LedgerFigures:
        """Since the start; `above_idle_joules` with all charges."""
        rows = self._totals.copy()
        rows[_ABOVE_IDLE] += self._charged
        return self._figures(rows)

    def window(self, now_ns: int) -> tuple[float, LedgerFigures]:
        """The seconds of the window that ends now, and the chips' figures in it, of steps alone."""
        whole_ns = int(WINDOW_S * NS_PER_S)
        samples = [*self._samples, (self.end_ns, self._totals), (now_ns, self._totals)]
        first = max(
            (place for place, (at_ns, _) in enumerate(samples) if now_ns - at_ns >= whole_ns),
            default=0,
        )
        begin_ns, before = samples[first]
        rests = first + 1 < len(samples) and samples[first + 1][1] is before
        if rests and now_ns - begin_ns > whole_ns:  # it need not reach back to where the rest began
            begin_ns = now_ns - whole_ns
        return (now_ns - begin_ns) / NS_PER_S, self._figures(self._totals - before)

    def _figures(self, rows: Float64s) -> LedgerFigures:
        return LedgerFigures(rows=rows, engines=self._engines)
