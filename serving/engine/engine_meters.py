"""The meters of a running engine: tokens, chips, steps. They count steps, and what lies beyond."""

from collections.abc import Collection, Iterable
from dataclasses import replace as replace_fields
from typing import Final

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from emulator.specs.batch import StepBatch
from emulator.specs.health import Health
from emulator.ultraserver.ceilings import ceilings_of
from emulator.ultraserver.machine import Machine
from emulator.ultraserver.step_cost import ENGINE_NAMES, StepCost
from emulator.units import NS_PER_S
from serving.engine.chip_counters import ChipCounters, Int64s
from serving.engine.engine_time import EngineTime, MachineTotals
from serving.engine.hardware_report import (
    Now,
    StateNow,
    hardware_report,
    metered_state,
    watts_of_chips,
)
from serving.engine.step_history import StepHistory
from serving.engine.token_meter import TokenMeter
from serving.wire.control_call import HardwareReply
from serving.wire.machine_state import LeaseState, MachineState
from serving.wire.snapshot import Snapshot
from serving.wire.telemetry import Telemetry

_REST_NS: Final = NS_PER_S
"""An engine that had nothing to do for longer rests: a window of tokens may begin in that time."""


class EngineMeters:
    """Of one engine, whose clock and energy are in `time`.

    Invariants: all chips' joules are the engine's; every step is in each meter once.
    """

    def __init__(self, machine: Machine, time: EngineTime) -> None:
        self._machine = machine
        self._time = time
        self._ceilings = ceilings_of(machine.cost_model)
        self.tokens = TokenMeter()
        self._chips = ChipCounters(machine.partition, ENGINE_NAMES, start_ns=time.start_ns)
        self._steps = StepHistory()
        self._end_ns = time.start_ns
        self._facility_joules = 0.0  # at the end of the last step
        self._beyond_joules = 0.0  # at the facility too: spent since then
        self._lost: NDArray[np.bool_] = np.zeros(
            machine.partition.chips + machine.partition.spares, dtype=np.bool_
        )

    def lose(self, lost: NDArray[np.bool_]) -> None:
        """The chips in `lost`, [chips], draw nothing from now on; nothing if that is no news."""
        if np.array_equal(lost, self._lost):
            return
        self._lost = lost.copy()
        self._chips.lose(lost, self._time.now_ns)
        self._time.lose(int(lost.sum()))

    def after_step(
        self,
        cost: StepCost,
        batch: StepBatch,
        seats: Int64s,
        *,
        begin_ns: int,
        output_tokens: int | None,
    ) -> None:
        """Count the step that `time` has just finished, on the chips in `seats`, int64[positions].

        `output_tokens` is None for a made-up step, whose tokens are not counted as served.
        """
        end_ns = self._time.accounted_ns
        idle_ns = begin_ns - self._end_ns
        if idle_ns > _REST_NS:
            idle_watts = self._machine.cost_model.facility_watts(self._time.idle_watts)
            idle_joules = idle_watts * idle_ns / NS_PER_S
            self.tokens.rest(
                begin_s=self._end_ns / NS_PER_S,
                begin_joules=self._facility_joules,
                end_s=begin_ns / NS_PER_S,
                end_joules=self._facility_joules + idle_joules + self._beyond_joules,
            )
        self._end_ns = end_ns
        self._facility_joules, self._beyond_joules = self._time.facility_joules, 0.0
        self._chips.add(
            cost,
            seats,
            begin_ns=begin_ns,
            end_ns=end_ns,
            idle_watts=self._ceilings.idle_watts,
        )
        self._steps.add(cost, batch, begin_ns=begin_ns, end_ns=end_ns)
        if output_tokens is not None:
            self.tokens.add(
                batch,
                output_tokens=output_tokens,
                emulated_s=self._time.accounted_s,
                facility_joules=self._time.facility_joules,
            )

    def spend(self, joules: float, chips: Collection[int] | None = None) -> None:
        """Count what `chips` drew beyond what steps and idle chips do; all alike without them."""
        before = self._time.facility_joules
        self._time.spend(joules)
        self._beyond_joules += self._time.facility_joules - before
        self._chips.add_beyond(joules, chips)

    def metered(self, state: MachineState) -> MachineState:
        """The state up to now: the clock's present, and the watts of the window that ends then."""
        now = StateNow(ns=self._time.now_ns, state=state)
        return metered_state(now, self._machine, self._chips, self._ceilings.idle_watts)

    def snapshot(
        self, totals: MachineTotals, health: Health, leases: Iterable[LeaseState]
    ) -> Snapshot:
        """All totals up to now, and the watts that a `metered` state would have."""
        now_ns = self._time.now_ns
        powered = np.asarray(health.works | health.hung, dtype=np.float64)
        watts = watts_of_chips(now_ns, self._chips, powered, leases, self._ceilings.idle_watts)
        chip_watts = float(watts.sum())
        return replace_fields(
            self._time.snapshot(totals, now_ns=now_ns),
            chip_watts=chip_watts,
            facility_watts=self._machine.cost_model.facility_watts(chip_watts),
        )

    def look(
        self, totals: MachineTotals, telemetry: Telemetry, state: MachineState
    ) -> HardwareReply:
        """Everything up to now; `telemetry` and `state` are of the last step's end."""
        now_ns = self._time.now_ns
        snapshot = self._time.snapshot(totals, now_ns=now_ns)
        now = Now(
            ns=now_ns,
            elapsed_s=(now_ns - self._time.start_ns) / NS_PER_S,
            snapshot=snapshot,
            telemetry=replace(
                telemetry,
                chip_joules=snapshot.chip_joules,
                facility_joules=snapshot.facility_joules,
            ),
            state=state,
            tokens=self.tokens.window_until(snapshot.emulated_s, snapshot.facility_joules),
        )
        report, snapshot = hardware_report(
            now, self._machine, self._chips, self._steps, self._ceilings
        )
        return HardwareReply(report=report, snapshot=snapshot)
