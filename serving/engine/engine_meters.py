"""The meters of a running engine: tokens, chips, steps. They count steps, and what lies beyond."""

from collections.abc import Iterable
from typing import Final

import numpy as np

from emulator.specs.batch import StepBatch
from emulator.specs.health import Health
from emulator.ultraserver.ceilings import ceilings_of
from emulator.ultraserver.machine import Machine
from emulator.ultraserver.step_cost import StepCost
from emulator.units import NS_PER_S
from serving.engine.ledger import Float64s, Int64s, Ledger
from serving.engine.machine_snapshot import machine_snapshot, watts_of_chips
from serving.engine.step_history import StepHistory
from serving.engine.token_meter import TokenMeter
from serving.wire.machine_snapshot import MachineSnapshot
from serving.wire.machine_state import LeaseState, MachineState
from serving.wire.telemetry import Telemetry

_REST_NS: Final = NS_PER_S
"""An engine that had nothing to do for longer rests: a window of tokens may begin in that time."""


class EngineMeters:
    """Of one engine on `machine`, whose clock stood at `start_ns`.

    Invariants: every step is in each meter once.
    """

    def __init__(self, machine: Machine, *, start_ns: int) -> None:
        cost = machine.cost_model
        self._machine = machine
        self._ceilings = ceilings_of(cost)
        self.tokens = TokenMeter()
        self.ledger = Ledger(
            machine.partition,
            idle_watts=cost.idle_chip_watts,
            facility_watts=cost.facility_watts,
            start_ns=start_ns,
        )
        self._steps = StepHistory()
        self._facility_joules = 0.0  # at the end of the last step

    def after_step(
        self,
        cost: StepCost,
        batch: StepBatch,
        seats: Int64s,
        *,
        begin_ns: int,
        end_ns: int,
        output_tokens: int | None,
    ) -> None:
        """Count a step that has just ended, on the chips in `seats`, int64[positions].

        `output_tokens` is None for a made-up step, whose tokens are not counted as served.
        """
        ledger, before_ns = self.ledger, self.ledger.end_ns
        if begin_ns - before_ns > _REST_NS:
            self.tokens.rest(
                begin_s=before_ns / NS_PER_S,
                begin_joules=self._facility_joules,
                end_s=begin_ns / NS_PER_S,
                end_joules=ledger.facility_joules(begin_ns),
            )
        ledger.add_step(cost, seats, begin_ns=begin_ns, end_ns=end_ns)
        self._facility_joules = ledger.facility_joules(end_ns)
        self._steps.add(cost, batch, begin_ns=begin_ns, end_ns=end_ns)
        if output_tokens is not None:
            self.tokens.add(
                batch,
                output_tokens=output_tokens,
                emulated_s=end_ns / NS_PER_S,
                facility_joules=self._facility_joules,
            )

    def watts(self, at_ns: int, health: Health, leases: Iterable[LeaseState]) -> Float64s:
        """What each chip draws, [chips]: the only watts of chips that are shown anywhere."""
        powered = np.asarray(health.works | health.hung, dtype=np.float64)
        return watts_of_chips(at_ns, self.ledger, powered, leases, self._ceilings.idle_watts)

    def snapshot(self, at_ns: int, telemetry: Telemetry, state: MachineState) -> MachineSnapshot:
        """Everything at `at_ns`, of which the others are too."""
        return machine_snapshot(
            at_ns,
            telemetry,
            state,
            self._machine,
            tokens=self.tokens.window_until(telemetry.emulated_s, telemetry.facility_joules),
            ledger=self.ledger,
            history=self._steps,
            ceilings=self._ceilings,
        )
