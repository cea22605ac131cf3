"""The page of one snapshot, its age and its content, and the partition's families in it."""

from collections.abc import Iterable, Mapping
from typing import Final

import numpy as np

from serving.telemetry.families import partition as families
from serving.telemetry.families.family import Family
from serving.telemetry.families.partition import SNAPSHOT_AGE, SNAPSHOT_DURATION
from serving.telemetry.host_meter import HostReading
from serving.telemetry.page.chip_page import add_chips
from serving.telemetry.page.neuron_page import Instance, add_neuron
from serving.telemetry.page.text_page import TextPage
from serving.wire.machine_snapshot import MachineSnapshot
from serving.wire.machine_state import ChipHealth, LeaseState

_CHANGING = ("draining", "restoring")
_TRAINING: Final[Mapping[Family, str]] = {
    families.TRAINING_LOSS: "loss",
    families.TRAINING_LAG: "lag_s",
    families.TRAINING_SHARE: "trained_share",
    families.TRAINING_COMPUTED: "computed_share",
}
"""Families of a lease's job, by field of its totals."""


def add_partition(page: TextPage, snapshot: MachineSnapshot) -> None:
    """Add power, racks, tokens, steps, faults and hand-overs."""
    _add_power(page, snapshot)
    _add_work(page, snapshot)
    _add_ranks(page, snapshot)
    state = snapshot.state
    faults = [((kind,), count) for kind, count in snapshot.faults_by_kind.items()]
    page.add(families.FAULTS_BY_KIND, faults)
    page.one(families.FAULTS_OPEN, snapshot.faults_open)
    ages = [
        ((str(lease.number), str(lease.phase)), snapshot.emulated_s - lease.since_emulated_s)
        for lease in state.leases
        if lease.phase in _CHANGING
    ]
    page.add(families.HANDOVER_AGE, ages)
    _add_training(page, state.leases)


def _add_training(page: TextPage, leases: Iterable[LeaseState]) -> None:
    jobs = [
        ((str(lease.number),), lease.training)
        for lease in leases
        if lease.phase == "training" and lease.training is not None
    ]
    for family, field in _TRAINING.items():
        values = [(label, getattr(job, field)) for label, job in jobs]
        page.add(family, [(label, value) for label, value in values if value is not None])


def _add_power(page: TextPage, snapshot: MachineSnapshot) -> None:
    power = snapshot.power
    window = power.window.tokens_per_megawatt if power.window is not None else ()
    page.add(
        families.TOKENS_PER_MEGAWATT,
        [
            ((kind, each.basis), getattr(each, kind))
            for each in window
            for kind in ("output", "input", "total")
        ],
    )
    page.one(families.PUE, power.pue)
    page.one(families.IT_POWER, power.it_watts)
    parts = [((p.removesuffix("_watts"),), watts) for p, watts in power.parts_watts.items()]
    page.add(families.FACILITY_PART, parts)
    page.add(families.RACK_POWER, [((str(rack.rack),), rack.it_watts) for rack in power.racks])
    budgets = [((str(rack.rack),), rack.provisioned_watts) for rack in power.racks]
    page.add(families.RACK_BUDGET, budgets)
    page.one(families.CHIP_BUDGET, power.chip_budget_watts)
    racks = snapshot.state.racks
    page.add(families.SWITCH_TRAYS_UP, [((str(r.rack),), r.switch_trays_up) for r in racks])
    page.add(families.SWITCH_TRAYS, [((str(r.rack),), r.switch_trays) for r in racks])


def _add_work(page: TextPage, snapshot: MachineSnapshot) -> None:
    telemetry = snapshot.telemetry
    tokens = [(("prompt",), telemetry.prompt_tokens), (("output",), telemetry.output_tokens)]
    page.add(families.TOKENS, tokens)
    page.add(families.STEP_PART, [((part,), each) for part, each in snapshot.parts_s.items()])
    by_phase = [((phase,), count) for phase, count in snapshot.steps_by_phase.items()]
    page.add(families.STEPS_BY_PHASE, by_phase)
    serving = [
        meters.engine_utilization
        for chip, meters in zip(snapshot.state.chips, snapshot.meters, strict=True)
        if chip.rank is not None and chip.health in (ChipHealth.UP, ChipHealth.SLOW)
    ]
    engines = serving[0] if serving else {}
    shares = [((name,), float(np.mean([each[name] for each in serving]))) for name in engines]
    page.add(families.ENGINE_UTILIZATION, shares)


def _add_ranks(page: TextPage, snapshot: MachineSnapshot) -> None:
    ranks = [((str(rank.rank),), rank) for rank in snapshot.state.ranks]
    page.add(families.RANK_RUNNING, [(key, rank.requests_running) for key, rank in ranks])
    page.add(families.RANK_WAITING, [(key, rank.requests_waiting) for key, rank in ranks])
    used = [(key, rank.kv_blocks_used / rank.kv_blocks) for key, rank in ranks if rank.kv_blocks]
    page.add(families.RANK_KV, used)
    page.add(families.RANK_UP, [(key, int(rank.up)) for key, rank in ranks])


def age_page(*, age_s: float, took_s: float) -> str:
    """The families of a snapshot `age_s` old, which took `took_s`, both wall."""
    page = TextPage()
    page.one(SNAPSHOT_AGE, age_s)
    page.one(SNAPSHOT_DURATION, took_s)
    return page.text()


def snapshot_page(snapshot: MachineSnapshot, instance: Instance, host: HostReading) -> str:
    """The families of the snapshot's content."""
    page = TextPage()
    add_partition(page, snapshot)
    add_chips(page, snapshot)
    add_neuron(page, snapshot, instance, host)
    return page.text()
