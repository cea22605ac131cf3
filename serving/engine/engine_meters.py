"""Meters of a running engine (tokens, chips, steps, power), and the snapshot made from them."""

from collections import Counter, defaultdict
from collections.abc import Iterable
from typing import Final

import numpy as np
from msgspec import convert, structs

from emulator.power.efficiency import TokenRates, tokens_per_megawatt
from emulator.power.system_power import SystemPower
from emulator.specs.batch import StepBatch
from emulator.specs.fault import FaultKind
from emulator.specs.health import Health
from emulator.ultraserver.ceilings import ceilings_of
from emulator.ultraserver.machine import Machine
from emulator.ultraserver.step_cost import StepCost
from emulator.units import NS_PER_S
from loadgen.measures.percentile import percentile
from serving.engine.ledger import FIGURES, Float64s, Int64s, Ledger
from serving.engine.live_machine import LiveStep
from serving.engine.step_batch import prefill_and_decode_tokens
from serving.engine.step_report import StepEnergy
from serving.engine.token_meter import TokenMeter, TokenTotals
from serving.wire.machine_snapshot import ChipMeters, MachineSnapshot, StepDurations
from serving.wire.machine_state import ChipHealth, FaultRecord, LeaseState, MachineState
from serving.wire.power_report import (
    ChipPower,
    MachinePower,
    PowerWindow,
    RackPower,
    TokensPerMegawatt,
)
from serving.wire.step_record import StepPhase, phase_of
from serving.wire.telemetry import Telemetry, with_figures


def machine_power(
    power: SystemPower, state: MachineState, telemetry: Telemetry, window: TokenTotals | None
) -> MachinePower:
    """Power at the moment of `state` and `telemetry`; spares draw idle power and their share."""
    chips = state.partition.chips + state.partition.spares
    facility = power.facility_watts(telemetry.chip_watts, chips=chips)
    return with_figures(
        MachinePower,
        telemetry,
        it_watts=facility.it_watts,
        parts_watts=dict(facility.parts()),
        chip_budget_watts=power.system.chip.budget_watts.value,
        pue=power.pue(),
        chips=tuple(ChipPower(chip=chip.chip, watts=chip.watts) for chip in state.chips),
        racks=_racks(power, state),
        window=None if window is None else _window(power, window, chips),
    )


def _racks(power: SystemPower, state: MachineState) -> tuple[RackPower, ...]:
    watts: dict[int, list[float]] = defaultdict(list)
    for chip in state.chips:
        watts[chip.rack].append(chip.watts)
    racks = []
    for rack, each in sorted(watts.items()):
        facility = power.facility_watts(sum(each), chips=len(each))
        racks.append(
            RackPower(
                rack=rack,
                chips=len(each),
                chip_watts=facility.chip_watts,
                it_watts=facility.it_watts,
                provisioned_watts=facility.provisioned_watts,
            )
        )
    return tuple(racks)


def _window(power: SystemPower, window: TokenTotals, chips: int) -> PowerWindow:
    rates = TokenRates(
        output_tokens_per_s=window.output_tokens / window.emulated_s,
        input_tokens_per_s=window.prompt_tokens / window.emulated_s,
    )
    drawn_watts = window.facility_joules / window.emulated_s
    return PowerWindow(
        emulated_s=window.emulated_s,
        prompt_tokens=window.prompt_tokens,
        output_tokens=window.output_tokens,
        facility_joules=window.facility_joules,
        tokens_per_megawatt=tuple(
            convert(each, TokensPerMegawatt, from_attributes=True)
            for each in tokens_per_megawatt(power, rates, chips=chips, drawn_watts=drawn_watts)
        ),
    )


KEPT: Final = 1_024
"""Durations that are kept: a second or more of the fastest decode, and 16 kB."""


class StepHistory:
    """Counts steps since the engine's start."""

    def __init__(self) -> None:
        self.by_phase: dict[str, int] = {str(phase): 0 for phase in StepPhase}
        self._parts_ns: dict[str, float] = {}
        self._total_ns = np.zeros(KEPT, dtype=np.int64)
        self._device_ns = np.zeros(KEPT, dtype=np.int64)
        self._steps = 0

    def add(self, cost: StepCost, batch: StepBatch, *, begin_ns: int, end_ns: int) -> None:
        """Count a step; its end minus its begin includes pauses."""
        prompts, decodes = (int(tokens.sum()) for tokens in prefill_and_decode_tokens(batch))
        self.by_phase[phase_of(prompts, prompts + decodes)] += 1
        for name, part_ns in cost.parts_ns.items():
            self._parts_ns[name] = self._parts_ns.get(name, 0.0) + part_ns
        place = self._steps % KEPT
        self._total_ns[place] = end_ns - begin_ns
        self._device_ns[place] = cost.duration_ns
        self._steps += 1

    @property
    def parts_s(self) -> dict[str, float]:
        """Time of all steps by named part."""
        return {name: part_ns / NS_PER_S for name, part_ns in self._parts_ns.items()}

    @property
    def total_times(self) -> StepDurations:
        """Durations of the last steps, from begin to end."""
        return step_times(self._total_ns[: self._steps])

    @property
    def device_times(self) -> StepDurations:
        """Durations of the chips' work in them."""
        return step_times(self._device_ns[: self._steps])


def step_times(durations_ns: np.ndarray[tuple[int, ...], np.dtype[np.int64]]) -> StepDurations:
    """Percentiles of durations, int64[steps]."""
    if not len(durations_ns):
        return StepDurations(steps=0)
    at = {f"p{q}_s": percentile(durations_ns, q) / NS_PER_S for q in (0, 1, 25, 50, 75, 99, 100)}
    return StepDurations(steps=len(durations_ns), **at)


FAULTS_SHOWN_MAX: Final = 64
"""Most faults in a snapshot, the newest; GetState shows all."""

_NAMED: Final = tuple(name for name in FIGURES if name in ChipMeters.__struct_fields__)
_OTHERS: Final = tuple(name for name in FIGURES if name not in ("busy_ns", *_NAMED))
"""Figures of the ledger that are fields of a chip's meters, and those that are in `figures`."""

_REST_NS: Final = NS_PER_S
"""A longer idle time is a rest, within which a window of tokens may begin."""


class EngineMeters:
    """Meters of an engine whose clock started at `start_ns`; every step is in each meter once."""

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
        """Count a step just ended on `seats`, int64[positions]; no `output_tokens`: a warm-up."""
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

    def step_energy(self, live: LiveStep) -> StepEnergy:
        """Of the last step, which is `live`."""
        chip_joules, facility_joules = self.ledger.step_joules
        return StepEnergy(
            chip_joules=chip_joules,
            facility_joules=facility_joules,
            ranks=tuple(live.result.outputs),
            chip_of_position=live.seating.chip_of_position,
            tp=self._machine.partition.tp,
        )

    def watts(self, at_ns: int, health: Health, leases: Iterable[LeaseState]) -> Float64s:
        """Watts of each chip, [chips]: the mean over the window's steps and idle time.

        The only source of shown chip watts. A lost chip draws nothing, a training one what its job
        reports. Weight reads are charged at once: in joules, not in watts.
        """
        idle_watts = self._ceilings.idle_watts
        window_s, window = self.ledger.window(at_ns)
        watts: Float64s = np.full(len(health.lost), float(idle_watts))
        if window_s:
            watts += window.above_idle_joules / window_s
        for lease in leases:
            if lease.phase == "training" and lease.training is not None:
                chips = [chip for chip in lease.chips if chip not in lease.lost_chips]
                watts[chips] = max(lease.training.watts / max(1, len(chips)), idle_watts)
        return watts * (health.works | health.hung)

    def snapshot(self, at_ns: int, telemetry: Telemetry, state: MachineState) -> MachineSnapshot:
        """Everything at `at_ns`, the moment of the other arguments; all watts are of the window."""
        machine, history, faults = self._machine, self._steps, state.faults
        tokens = self.tokens.window_until(telemetry.emulated_s, telemetry.facility_joules)
        capacity = machine.link_capacity_bytes_per_s()
        kinds = Counter(record.fault.kind for record in faults)
        return MachineSnapshot(
            emulated_s=telemetry.emulated_s,
            window_s=self.ledger.window(at_ns)[0],
            state=structs.replace(state, faults=faults[-FAULTS_SHOWN_MAX:]),
            telemetry=telemetry,
            power=machine_power(SystemPower(machine.system), state, telemetry, tokens),
            meters=self._chip_meters(at_ns, state, capacity),
            parts_s=history.parts_s,
            steps_by_phase=dict(history.by_phase),
            step_times=history.total_times,
            device_times=history.device_times,
            faults_by_kind={str(kind): kinds[kind] for kind in FaultKind},
            faults_open=sum(record.healed_emulated_s is None for record in faults),
            ceilings=self._ceilings,
            link_capacity_bytes_per_s=tuple(capacity.tolist()),
            neuroncores_per_chip=machine.system.chip.logical_cores(machine.partition.lnc),
        )

    def _chip_meters(
        self, at_ns: int, state: MachineState, capacity: Float64s
    ) -> tuple[ChipMeters, ...]:
        """Meters of each chip; `capacity` is of its links, bytes per second, [chips]."""
        window_s, window = self.ledger.window(at_ns)
        totals = self.ledger.totals
        powered = np.array([chip.health is not ChipHealth.LOST for chip in state.chips])
        per_s = (1 / window_s if window_s else 0.0) * powered  # [chips]
        could_send = np.where(capacity > 0, capacity, np.inf)
        engine_busy_s = (totals.engine_busy_ns / NS_PER_S).T.tolist()  # [chips][engines]
        engine_share = (window.engine_busy_ns * (per_s / NS_PER_S)).T.tolist()
        failed = _failed_stacks(state.faults)
        columns = {
            "busy_s": totals["busy_ns"] / NS_PER_S,
            **{name: totals[name] for name in _NAMED},
            "joules": self.ledger.chip_joules(at_ns),
            "utilization": window["busy_ns"] * (per_s / NS_PER_S),
            "link_utilization": window["link_bytes"] * per_s / could_send,
            "hbm_utilization": window["hbm_bytes"] * per_s / self._ceilings.hbm_bytes_per_s,
            "flops_per_s": window["flops"] * per_s,
        }
        rows = zip(*(column.tolist() for column in columns.values()), strict=True)
        return tuple(
            ChipMeters(
                chip=chip.chip,
                engine_busy_s=dict(zip(totals.engines, engine_busy_s[number], strict=True)),
                engine_utilization=dict(zip(totals.engines, engine_share[number], strict=True)),
                ecc_corrected=0,
                ecc_uncorrected=failed[chip.chip],
                watts=chip.watts,
                figures={name: float(totals[name][number]) for name in _OTHERS},
                **dict(zip(columns, row, strict=True)),
            )
            for number, (chip, row) in enumerate(zip(state.chips, rows, strict=True))
        )


def _failed_stacks(faults: tuple[FaultRecord, ...]) -> Counter[int]:
    """HBM stacks that have failed since the start, by chip."""
    failed = FaultKind.FAIL_STACK
    return Counter(record.fault.chip for record in faults if record.fault.kind is failed)
