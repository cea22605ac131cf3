"""Watts of a row at the racks and at the meter, and what its power cap holds.

A cap binds jobs first, then serving. Both are decided for an hour, by its most demanding minute,
which is taken as known (assumed): jobs are paused on as many machines as that needs, and if it
would need more even then, machines are off.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from emulator.errors import ConfigError
from emulator.power.system_power import SystemPower
from serving.analysis.day.day_result import DayMachine
from serving.analysis.day.day_walk import DayWalk
from serving.analysis.day.training_yield import GroupHandover
from serving.analysis.fleet.fleet_plan import WATTS_PER_MEGAWATT, FleetRow
from serving.analysis.fleet.row_duty import RowDuty

Float64s = NDArray[np.float64]
Int64s = NDArray[np.int64]

_ROUNDING = 1e-9


@dataclass(frozen=True, kw_only=True, eq=False)
class RowPower:
    """`pue` by hour, [hours]; `cap_watts` of the row at the meter, [hours], or None without one."""

    machine: DayMachine
    handover: GroupHandover
    row: FleetRow
    pue: Float64s
    cap_watts: Float64s | None

    def it_watts(self, chip_watts: Float64s) -> Float64s:
        """Of one machine at the racks' input, by its chips' watts, [any] -> [any]."""
        machine = self.machine
        watts: Float64s = machine.facility_watts(chip_watts) / SystemPower(machine.system).pue(
            machine.season
        )
        return watts

    @cached_property
    def idle_it_watts(self) -> float:
        """Of a machine whose chips idle."""
        idle = self.machine.system.chips.count * self.machine.system.chip.idle_watts.value
        return float(self.it_watts(np.array(idle)))

    @cached_property
    def most_it_watts(self) -> float:
        """Of a machine that trains nothing, at any load."""
        machine, handover = self.machine, self.handover
        curve = machine.curve
        rates = [*(point.rate_per_s for point in curve.points), curve.saturated_per_s]
        group = float(curve.chip_watts(np.array([0.0, *rates])).max())
        if handover.restore_s:
            group = max(group, handover.restore_joules / handover.restore_s)
        return float(self.it_watts(np.array(machine.groups * group + machine.left_over_watts)))

    def surely_held(self) -> Int64s:
        """Machines whose serving the cap holds in each hour whatever their load, [hours].

        Raises ConfigError for a cap that does not hold one beside the hot spares.
        """
        if self.cap_watts is None:
            return np.full(len(self.pue), self.row.slots)
        spares_watts = self.row.hot_spares * self.idle_it_watts
        rest = self.cap_watts / self.pue - spares_watts
        limit = np.floor(rest / self.most_it_watts + _ROUNDING).astype(np.int64)
        if limit.min() < 1:
            hour = int(limit.argmin())
            least = (spares_watts + self.most_it_watts) * self.pue[hour] / WATTS_PER_MEGAWATT
            expected = (
                f"at least {least:.3g} in hour {hour}: hot spares and one machine of "
                f"{self.row.machines} x {self.row.system}"
            )
            cap_mw = self.cap_watts[hour] / WATTS_PER_MEGAWATT
            raise ConfigError("cap_mw", f"{cap_mw:.3g} of a row", expected)
        found: Int64s = np.minimum(limit, self.row.slots)
        return found

    def held(self, walk: DayWalk, duty: RowDuty) -> Int64s:
        """Machines whose serving the cap holds in each hour, at the walk's draws, [hours]."""
        if self.cap_watts is None:
            return np.full(len(self.pue), self.row.slots)
        _, without = self._machine_it_watts(walk)
        holds = self._least_of_hour(self._beside_spares(self.cap_watts, duty) / without)
        return holds.astype(np.int64)

    def job_watts(self, walk: DayWalk) -> Float64s:
        """What a machine's job draws beyond idle chips, in each interval, [intervals]."""
        handover, idle_watts = self.handover, self.machine.curve.idle_watts
        restoring = walk.column("restoring_s")
        joules = walk.column("joules") - idle_watts * walk.column("idle_s")
        if handover.restore_s:
            joules -= restoring * handover.restore_joules / handover.restore_s
        at_job_s = walk.column("training_s") + walk.column("paused_s")
        watts: Float64s = np.maximum(joules - idle_watts * at_job_s, 0.0) / walk.demand.interval_s
        return watts

    def running(self, walk: DayWalk, duty: RowDuty) -> Int64s:
        """Working machines whose job is not paused, in each interval, as `duty` is, [intervals]."""
        if self.cap_watts is None:
            return duty.working
        with_job, without = self._machine_it_watts(walk)
        job = with_job - without
        left = self._beside_spares(self.cap_watts, duty) - duty.working * without
        holds = np.full(len(job), float(self.row.slots))
        np.divide(left, job, out=holds, where=job > _ROUNDING)
        allowed = np.repeat(self._least_of_hour(holds), len(job) // len(self.pue))
        return np.clip(allowed, 0, duty.working).astype(np.int64)

    def _beside_spares(self, cap_watts: Float64s, duty: RowDuty) -> Float64s:
        """What the cap leaves at the racks beside the hot spares, [intervals]."""
        of_cap = np.repeat(cap_watts / self.pue, len(duty.hot) // len(self.pue))
        left: Float64s = of_cap - duty.hot * self.idle_it_watts
        return left

    def _least_of_hour(self, machines: Float64s) -> Float64s:
        """Whole machines of each hour's least favourable interval, [intervals] -> [hours]."""
        least = machines.reshape(len(self.pue), -1).min(axis=1)
        found: Float64s = np.floor(least + _ROUNDING)
        return found

    def row_it_watts(self, walk: DayWalk, duty: RowDuty, running: Int64s) -> Float64s:
        """Of all machines, [intervals]; those that are off or out draw nothing (assumed)."""
        with_job, without = self._machine_it_watts(walk)
        paused = duty.working - running
        watts: Float64s = running * with_job + paused * without + duty.hot * self.idle_it_watts
        return watts

    def _machine_it_watts(self, walk: DayWalk) -> tuple[Float64s, Float64s]:
        """Of one machine that works, with its job and with its job's chips idle, [intervals]."""
        chip_watts = self.machine.chip_watts(walk)
        return self.it_watts(chip_watts), self.it_watts(chip_watts - self.job_watts(walk))
