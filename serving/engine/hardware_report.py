"""One look at everything of a running engine that a dashboard shows; see HardwareReport."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from msgspec import structs

from emulator.power.system_power import SystemPower
from emulator.specs.fault import FaultKind
from emulator.ultraserver.ceilings import Ceilings
from emulator.ultraserver.machine import Machine
from emulator.units import NS_PER_S
from serving.engine.chip_counters import ChipCounters, Float64s
from serving.engine.power_figures import power_report
from serving.engine.step_history import StepHistory
from serving.engine.token_meter import TokenTotals
from serving.wire.hardware import ChipMeters, HardwareReport
from serving.wire.machine_state import ChipHealth, FaultRecord, LeaseState, MachineState
from serving.wire.snapshot import Snapshot
from serving.wire.telemetry import Telemetry

FAULTS_SHOWN_MAX: Final = 64
"""Of one look: a page of them. GetState shows all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StateNow:
    """The machine's state at one moment."""

    ns: int
    state: MachineState


@dataclass(frozen=True, slots=True, kw_only=True)
class Now(StateNow):
    """What the engine's parts say of one moment; `snapshot` and `telemetry` are up to now."""

    elapsed_s: float  # since the energy meter's start
    snapshot: Snapshot
    telemetry: Telemetry
    tokens: TokenTotals | None  # of the window that ends now


def metered_state(
    now: StateNow, machine: Machine, counters: ChipCounters, idle_watts: float
) -> MachineState:
    """The state with the moment's clock, and the watts of the window that ends then.

    Every view of the engine shows these: `state`, `watch`, power, dashboards and metrics.
    """
    watts = watts_of_chips(now.ns, counters, _powered(now), now.state.leases, idle_watts)
    chip_watts = float(watts.sum())
    return structs.replace(
        now.state,
        emulated_s=now.ns / NS_PER_S,
        chips=tuple(
            structs.replace(chip, watts=each)
            for chip, each in zip(now.state.chips, watts.tolist(), strict=True)
        ),
        chip_watts=chip_watts,
        facility_watts=machine.cost_model.facility_watts(chip_watts),
    )


def hardware_report(
    now: Now,
    machine: Machine,
    counters: ChipCounters,
    history: StepHistory,
    ceilings: Ceilings,
) -> tuple[HardwareReport, Snapshot]:
    """The report, and the moment's snapshot with the window's watts."""
    window_s, _ = counters.window(now.ns)
    capacity = machine.link_capacity_bytes_per_s()
    faults = now.state.faults
    state = structs.replace(
        metered_state(now, machine, counters, ceilings.idle_watts),
        faults=faults[-FAULTS_SHOWN_MAX:],
    )
    watts: Float64s = np.array([chip.watts for chip in state.chips])
    snapshot = replace(
        now.snapshot, chip_watts=state.chip_watts, facility_watts=state.facility_watts
    )
    kinds = Counter(record.fault.kind for record in faults)
    report = HardwareReport(
        emulated_s=now.ns / NS_PER_S,
        window_s=window_s,
        state=state,
        telemetry=structs.replace(
            now.telemetry,
            emulated_s=state.emulated_s,
            chip_watts=state.chip_watts,
            facility_watts=state.facility_watts,
        ),
        power=power_report(SystemPower(machine.system), state, snapshot, now.tokens),
        meters=_meters(now, counters, ceilings, watts, capacity),
        parts_s=history.parts_s,
        steps_by_phase=dict(history.by_phase),
        step_times=history.total_times,
        device_times=history.device_times,
        faults_by_kind={str(kind): kinds[kind] for kind in FaultKind},
        faults_open=sum(record.healed_emulated_s is None for record in faults),
        ceilings=ceilings,
        link_capacity_bytes_per_s=tuple(capacity.tolist()),
        neuroncores_per_chip=machine.system.chip.logical_cores(machine.partition.lnc),
    )
    return report, snapshot


def watts_of_chips(
    now_ns: int,
    counters: ChipCounters,
    powered: Float64s,
    leases: Iterable[LeaseState],
    idle_watts: float,
) -> Float64s:
    """What each chip draws, [chips]: the mean over the window's steps and the idle time in it.

    A lost chip, whose `powered` [chips] is 0 and not 1, draws nothing. A chip that trains draws
    what its job says. What chips draw beyond that while they read weights is booked in one go: it
    is in their joules, and in no chip's watts.
    """
    window_s, window = counters.window(now_ns)
    watts: Float64s = np.full(len(powered), float(idle_watts))
    if window_s:
        watts += window.above_idle_joules / window_s
    for lease in leases:
        training = _training_watts(lease)
        if training is not None:
            watts[list(lease.chips)] = max(training, idle_watts)
    return watts * powered


def _powered(now: StateNow) -> Float64s:
    """1 for each chip that is there, 0 for one that is lost: it does and draws nothing, [chips]."""
    return np.array([float(chip.health is not ChipHealth.LOST) for chip in now.state.chips])


def _training_watts(lease: LeaseState) -> float | None:
    """Of each of a lease's chips, by its job's own word; None while it does not train."""
    if lease.phase != "training" or lease.training is None:
        return None
    return lease.training.watts / len(lease.chips)


def _meters(
    now: Now, counters: ChipCounters, ceilings: Ceilings, watts: Float64s, capacity: Float64s
) -> tuple[ChipMeters, ...]:
    window_s, window = counters.window(now.ns)
    totals = counters.totals
    per_s = (1 / window_s if window_s else 0.0) * _powered(now)  # [chips]
    powered_s = now.elapsed_s - counters.unpowered_s(now.ns)  # [chips]
    joules = ceilings.idle_watts * powered_s + totals.above_idle_joules
    could_send = np.where(capacity > 0, capacity, np.inf)
    engine_busy_s = (totals.engine_busy_ns / NS_PER_S).T.tolist()  # [chips][engines]
    engine_share = (window.engine_busy_ns * (per_s / NS_PER_S)).T.tolist()
    failed = _failed_stacks(now.state.faults)
    columns = zip(
        (totals.busy_ns / NS_PER_S).tolist(),
        totals.flops.tolist(),
        totals.hbm_bytes.tolist(),
        totals.link_bytes.tolist(),
        joules.tolist(),
        watts.tolist(),
        (window.busy_ns * (per_s / NS_PER_S)).tolist(),
        (window.link_bytes * per_s / could_send).tolist(),
        (window.hbm_bytes * per_s / ceilings.hbm_bytes_per_s).tolist(),
        (window.flops * per_s).tolist(),
        strict=True,
    )
    meters = []
    for chip, column in enumerate(columns):
        busy_s, flops, hbm_bytes, link_bytes, joule, watt, busy, links, hbm, flops_per_s = column
        meters.append(
            ChipMeters(
                chip=chip,
                engine_busy_s=dict(zip(totals.engines, engine_busy_s[chip], strict=True)),
                busy_s=busy_s,
                flops=flops,
                hbm_bytes=hbm_bytes,
                link_bytes=link_bytes,
                joules=joule,
                ecc_corrected=0,
                ecc_uncorrected=failed[chip],
                watts=watt,
                utilization=busy,
                engine_utilization=dict(zip(totals.engines, engine_share[chip], strict=True)),
                link_utilization=links,
                hbm_utilization=hbm,
                flops_per_s=flops_per_s,
            )
        )
    return tuple(meters)


def _failed_stacks(faults: tuple[FaultRecord, ...]) -> Counter[int]:
    """How many HBM stacks have failed since the start, by chip."""
    failed = FaultKind.FAIL_STACK
    return Counter(record.fault.chip for record in faults if record.fault.kind is failed)
