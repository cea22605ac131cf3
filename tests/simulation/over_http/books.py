"""Invariants of a server, at all times and at rest.

Three sources must agree: the clients, the server's state and metrics, and the processes.
"""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import httpx
from prometheus_client.parser import text_string_to_metric_families

from emulator.specs.fault import FaultKind
from serving.wire.machine_state import (
    REQUESTS_NAMED_MAX,
    SERVING,
    ChipHealth,
    ChipState,
    FaultRecord,
    FaultStage,
    MachineState,
)
from tests.simulation.over_http.clients import Tally

OUTCOMES = "ultraserve_admission_requests_total"
MOVED = "ultraserve_requests_moved_total"
FAULTS = "ultraserve_faults_total"
_READ = (OUTCOMES, MOVED, FAULTS)
_NAME = re.compile(r"chaos-\d+")
_COMPUTES = (ChipHealth.UP, ChipHealth.SLOW)


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """Counts of one reading of /metrics: requests, by outcome if any, and faults."""

    entered: int
    finished: int
    aborted: int
    failed: int
    moved: int
    faults: int


def read_page(url: str) -> Page:
    """The current page; only the needed lines of its megabyte are parsed."""
    text = httpx.get(f"{url}/metrics", timeout=60.0).raise_for_status().text
    wanted = "\n".join(line for line in text.splitlines() if line.startswith(_READ))
    sums = Counter[str]()
    for family in text_string_to_metric_families(wanted):
        for sample in family.samples:
            sums[sample.labels.get("outcome", sample.name)] += int(sample.value)
    return Page(
        entered=sums["entered"],
        finished=sums["finished"],
        aborted=sums["aborted"],
        failed=sums["failed"],
        moved=sums[MOVED],
        faults=sums[FAULTS],
    )


def seated(state: MachineState) -> list[int]:
    """Chips with a rank that compute, ascending."""
    return [chip.chip for chip in state.chips if _is_seated(chip)]


def _is_seated(chip: ChipState) -> bool:
    return chip.rank is not None and chip.health in _COMPUTES


def check_now(state: MachineState) -> None:
    """Assert that no stack is overfull, no rank is up without its chips, no fault is forgotten."""
    for chip in state.chips:
        for stack in chip.stacks:
            used = sum(stack.owner_bytes.values())
            assert used <= stack.capacity_bytes, (chip.chip, stack)
            assert not (stack.failed and used), (chip.chip, stack)
    chips_of_rank = Counter(chip.rank for chip in state.chips if _is_seated(chip))
    up = {rank.rank for rank in state.ranks if rank.up}
    whole = {rank for rank, chips in chips_of_rank.items() if chips == state.partition.tp}
    assert up <= whole, f"ranks {sorted(up - whole)} are up without all of their chips"
    assert [fault.number for fault in state.faults] == list(range(1, len(state.faults) + 1))
    for rank in state.ranks:
        assert rank.kv_blocks_used <= rank.kv_blocks, rank


def moved_by_faults(state: MachineState) -> int:
    """Requests moved, by the faults' count."""
    return sum(fault.recovery.requests_moved for fault in state.faults if fault.recovery)


def moved_by_leases(state: MachineState) -> int:
    """Requests moved, by the hand-overs' count."""
    return sum(lease.moved_requests for lease in state.leases)


def check_faults(state: MachineState) -> None:
    """Assert that every fault was foreseen to be survived, and was."""
    for fault in state.faults:
        assert fault.survivable, fault
        assert fault.stage is not FaultStage.FAILED, fault
        assert fault.recovery is None or fault.recovery.requests_failed == 0, fault


def requests_named(record: FaultRecord) -> list[str]:
    """The clients' names of the requests that a fault has moved.

    Asserts their number, and that none is twice. The engine puts vLLM's words around a name.
    """
    recovery = record.recovery
    assert recovery is not None, record
    assert recovery.failed == (), record
    assert len(recovery.moved) == min(recovery.requests_moved, REQUESTS_NAMED_MAX), record
    found = [_NAME.search(name) for name in recovery.moved]
    names = [match.group() for match in found if match is not None]
    assert len(names) == len(recovery.moved), record
    assert len(set(recovery.moved)) == len(recovery.moved), record
    return names


def check_at_rest(state: MachineState, before: MachineState) -> None:
    """Assert that an idle, repaired machine is as before the first fault."""
    check_now(state)
    for rank in state.ranks:
        assert rank.up, rank
        assert (rank.requests_running, rank.requests_waiting) == (0, 0), rank
        assert rank.kv_blocks_used == 0, rank
    for chip in state.chips:
        assert (chip.health, chip.phase) == (ChipHealth.UP, SERVING), chip
        assert chip.cut_links == (), chip
        assert not any(stack.failed for stack in chip.stacks), chip
    assert held(state) == held(before), "HBM is held that was not held before, or the other way"
    assert filled(state) == filled(before)
    for rack in state.racks:
        assert rack.switch_trays_up == rack.switch_trays, rack
    for fault in state.faults:
        assert fault.stage is FaultStage.HEALED, fault
        assert fault.recovery is not None, fault
        assert fault.healed_emulated_s is not None, fault
        assert fault.healed_emulated_s >= fault.injected_emulated_s, fault


def held(state: MachineState) -> Counter[str]:
    """HBM of all chips by owner, bytes; a spare may replace a chip."""
    bytes_of = Counter[str]()
    for chip in state.chips:
        for stack in chip.stacks:
            bytes_of.update(stack.owner_bytes)
    return +bytes_of


def filled(state: MachineState) -> int:
    """Slots with an expert, of all chips and layers."""
    return sum(chip.expert_slots_filled for chip in state.chips)


def check_counts(page: Page, state: MachineState, tally: Tally, *, calm: int) -> None:
    """Assert equal counts of clients, server and machine; `calm` requests came before them."""
    accepted = tally.accepted + calm
    assert page.failed == 0, page
    assert page.entered == accepted, (page, tally.accepted, calm)
    assert page.finished + page.aborted == accepted, (page, tally.accepted, calm)
    assert page.aborted <= tally.hung_up, (page, tally.hung_up)
    assert page.faults == len(state.faults)


def check_accounts(page: Page, state: MachineState) -> None:
    """Assert that every moved request is in the account of one fault or one hand-over."""
    faults, leases = moved_by_faults(state), moved_by_leases(state)
    assert page.moved == faults + leases, (page.moved, faults, leases)


def check_stages(stages: Mapping[int, Sequence[FaultStage]], state: MachineState) -> None:
    """Assert one event per stage of every fault: happened, met, repaired."""
    for fault in state.faults:
        told = list(stages.get(fault.number, ()))
        stands_still = (FaultStage.PENDING, FaultStage.RECOVERING)
        assert told == [*stands_still, met_stage(fault), FaultStage.HEALED], (fault, told)


def met_stage(record: FaultRecord) -> FaultStage:
    """The stage of a fault when requests go on, before its repair."""
    slow = record.fault.kind is FaultKind.SLOW_CHIP
    return FaultStage.DEGRADED if slow else FaultStage.RECOVERED
