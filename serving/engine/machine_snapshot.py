"""Takes the snapshot of a running engine from its ledger; see MachineSnapshot."""

from collections import Counter
from collections.abc import Iterable
from typing import Final

import numpy as np
from msgspec import structs

from emulator.power.system_power import SystemPower
from emulator.specs.fault import FaultKind
from emulator.ultraserver.ceilings import Ceilings
from emulator.ultraserver.machine import Machine
from emulator.units import NS_PER_S
from serving.engine.ledger import FIGURES, Float64s, Ledger
from serving.engine.power_figures import machine_power
from serving.engine.step_history import StepHistory
from serving.engine.token_meter import TokenTotals
from serving.wire.machine_snapshot import ChipMeters, MachineSnapshot
from serving.wire.machine_state import ChipHealth, FaultRecord, LeaseState, MachineState
from serving.wire.telemetry import Telemetry

FAULTS_SHOWN_MAX: Final = 64
"""Of one snapshot: a page of them. GetState shows all."""


_NAMED: Final = tuple(name for name in FIGURES if name in ChipMeters.__struct_fields__)
_OTHERS: Final = tuple(name for name in FIGURES if name not in ("busy_ns", *_NAMED))
"""Figures of the ledger that are fields of a chip's meters, and those that are in `figures`."""


def machine_snapshot(
    at_ns: int,
    telemetry: Telemetry,
    state: MachineState,
    machine: Machine,
    *,
    tokens: TokenTotals | None,
    ledger: Ledger,
    history: StepHistory,
    ceilings: Ceilings,
) -> MachineSnapshot:
    """The snapshot at `at_ns`, which `telemetry` and `state` are of; `tokens` are the window's.

    All watts are of the ledger's window.
    """
    window_s, _ = ledger.window(at_ns)
    capacity = machine.link_capacity_bytes_per_s()
    faults = state.faults
    kinds = Counter(record.fault.kind for record in faults)
    return MachineSnapshot(
        emulated_s=telemetry.emulated_s,
        window_s=window_s,
        state=structs.replace(state, faults=faults[-FAULTS_SHOWN_MAX:]),
        telemetry=telemetry,
        power=machine_power(SystemPower(machine.system), state, telemetry, tokens),
        meters=_meters(at_ns, state, ledger, ceilings, capacity),
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


def watts_of_chips(
    now_ns: int,
    ledger: Ledger,
    powered: Float64s,
    leases: Iterable[LeaseState],
    idle_watts: float,
) -> Float64s:
    """What each chip draws, [chips]: the mean over the window's steps and the idle time in it.

    A lost chip, whose `powered` [chips] is 0 and not 1, draws nothing. A chip that trains draws
    what its job says. What chips draw beyond that while they read weights is booked in one go: it
    is in their joules, and in no chip's watts.
    """
    window_s, window = ledger.window(now_ns)
    watts: Float64s = np.full(len(powered), float(idle_watts))
    if window_s:
        watts += window.above_idle_joules / window_s
    for lease in leases:
        training = _training_watts(lease)
        if training is not None:
            watts[list(lease.chips)] = max(training, idle_watts)
    return watts * powered


def _training_watts(lease: LeaseState) -> float | None:
    """Of each of a lease's chips, by its job's own word; None while it does not train."""
    if lease.phase != "training" or lease.training is None:
        return None
    return lease.training.watts / len(lease.chips)


def _meters(
    at_ns: int, state: MachineState, ledger: Ledger, ceilings: Ceilings, capacity: Float64s
) -> tuple[ChipMeters, ...]:
    window_s, window = ledger.window(at_ns)
    totals = ledger.totals
    powered = np.array([chip.health is not ChipHealth.LOST for chip in state.chips])
    per_s = (1 / window_s if window_s else 0.0) * powered  # [chips]
    could_send = np.where(capacity > 0, capacity, np.inf)
    engine_busy_s = (totals.engine_busy_ns / NS_PER_S).T.tolist()  # [chips][engines]
    engine_share = (window.engine_busy_ns * (per_s / NS_PER_S)).T.tolist()
    failed = _failed_stacks(state.faults)
    columns = {
        "busy_s": totals["busy_ns"] / NS_PER_S,
        **{name: totals[name] for name in _NAMED},
        "joules": ledger.chip_joules(at_ns),
        "utilization": window["busy_ns"] * (per_s / NS_PER_S),
        "link_utilization": window["link_bytes"] * per_s / could_send,
        "hbm_utilization": window["hbm_bytes"] * per_s / ceilings.hbm_bytes_per_s,
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
    """How many HBM stacks have failed since the start, by chip."""
    failed = FaultKind.FAIL_STACK
    return Counter(record.fault.chip for record in faults if record.fault.kind is failed)
