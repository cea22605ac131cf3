"""What rows of machines come to, of one building or of all: every figure is a sum over the rows."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from serving.analysis.day.day_result import JOULES_PER_MWH, WORST_S
from serving.analysis.day.day_trace import HOUR_S
from serving.analysis.fleet.row_week import RowWeek

Float64s = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True, eq=False)
class FleetAccount:
    """Of the `rows`, which are walked over the same time; at least one."""

    name: str
    rows: tuple[RowWeek, ...]

    def total(self, of: Callable[[RowWeek], Float64s]) -> Float64s:
        """The rows' sum, [intervals]."""
        found: Float64s = np.sum([of(row) for row in self.rows], axis=0)
        return found

    @property
    def interval_s(self) -> float:
        """Of the walks."""
        return self.rows[0].result.walk.demand.interval_s

    @property
    def machines(self) -> int:
        """With the spares."""
        return sum(row.task.row.machines for row in self.rows)

    @property
    def chips(self) -> int:
        """Of all machines."""
        return sum(row.task.row.machines * row.chips for row in self.rows)

    @cached_property
    def arrived(self) -> float:
        """Requests."""
        return float(self.total(lambda row: row.arrived).sum())

    @cached_property
    def served(self) -> float:
        """Requests, by the end."""
        return float(self.total(lambda row: row.served).sum())

    @cached_property
    def attainment(self) -> float:
        """Share of the requests within both limits; 1 of none."""
        kept = float(self.total(lambda row: row.kept).sum())
        return max(0.0, kept / self.arrived) if self.arrived else 1.0

    @cached_property
    def worst_5min_attainment(self) -> float:
        """The same share in the 5 minutes that have the lowest; 1 without requests."""
        window = np.ones(max(1, round(WORST_S / self.interval_s)))
        kept = np.convolve(self.total(lambda row: row.kept), window, mode="valid")
        came = np.convolve(self.total(lambda row: row.arrived), window, mode="valid")
        shares = np.divide(kept, came, out=np.ones(len(came)), where=came > 0.5)
        return float(np.clip(shares.min(), 0.0, 1.0))

    @cached_property
    def output_tokens(self) -> float:
        """Served, by the mean length of a reply."""
        return sum(
            float(row.served.sum()) * row.result.machine.mean_output_tokens for row in self.rows
        )

    @cached_property
    def trained_tokens(self) -> float:
        """Kept, after failures and pauses."""
        return sum(float(row.tokens.sum()) for row in self.rows)

    @cached_property
    def goodput(self) -> float:
        """Trained tokens over those if nothing failed, stood still or was paused; 1 of none."""
        possible = sum(float(row.tokens_possible.sum()) for row in self.rows)
        return self.trained_tokens / possible if possible else 1.0

    @cached_property
    def meter_watts(self) -> Float64s:
        """At the utility's meter, [intervals]."""
        return self.total(lambda row: row.meter_watts)

    @cached_property
    def cap_watts(self) -> Float64s | None:
        """At the meter, [intervals]; None where a row has no cap."""
        caps = [row.task.cap_watts for row in self.rows]
        capped = [cap for cap in caps if cap is not None]
        if len(capped) < len(caps):
            return None
        hour_intervals = round(HOUR_S / self.interval_s)
        return np.repeat(np.sum(capped, axis=0), hour_intervals)

    @property
    def peak_watts(self) -> float:
        """The highest draw at the meter."""
        return float(self.meter_watts.max())

    @cached_property
    def energy_mwh(self) -> float:
        """At the meter."""
        return float(self.meter_watts.sum()) * self.interval_s / JOULES_PER_MWH

    @cached_property
    def mean_pue(self) -> float:
        """Energy at the meter over that of the racks."""
        return float(self.meter_watts.sum() / self.total(lambda row: row.it_watts).sum())

    @cached_property
    def output_tokens_per_mwh(self) -> float:
        """Served."""
        return self.output_tokens / self.energy_mwh

    @cached_property
    def failures(self) -> int:
        """Of all classes."""
        return sum(sum(row.failures.values()) for row in self.rows)

    def failures_of(self, name: str) -> int:
        """Of one class."""
        return sum(row.failures[name] for row in self.rows)

    def _machine_hours(self, of: Callable[[RowWeek], NDArray[np.int64]]) -> float:
        return sum(float(of(row).sum()) for row in self.rows) * self.interval_s / HOUR_S

    @property
    def length_h(self) -> float:
        """Of the walk."""
        return len(self.meter_watts) * self.interval_s / HOUR_S

    @cached_property
    def out_share(self) -> float:
        """Of the machines' time, under repair."""
        return self._machine_hours(lambda row: row.duty.out) / (self.machines * self.length_h)

    @cached_property
    def paused_hours(self) -> float:
        """Machine-hours in which a cap paused the job."""
        return self._machine_hours(lambda row: row.duty.working - row.running)

    @cached_property
    def shed_hours(self) -> float:
        """Machine-hours off for a cap."""
        return self._machine_hours(lambda row: row.duty.shed)

    @cached_property
    def missing_hours(self) -> float:
        """Machine-hours that no spare stood in for one that was out."""
        return sum(
            float((row.task.row.slots - row.duty.working - row.duty.shed).sum())
            for row in self.rows
        ) * (self.interval_s / HOUR_S)

    def chip_uses(self) -> dict[str, Float64s]:
        """Chips by use, [intervals] each."""
        each = [row.chip_uses() for row in self.rows]
        return {name: np.sum([uses[name] for uses in each], axis=0) for name in each[0]}
