"""Every single and double fault of small machines, held against trying everything."""

from dataclasses import replace
from functools import cache
from itertools import combinations

import numpy as np
import pytest

from emulator.errors import ConfigError
from emulator.fabric.all_to_all import AllToAll
from emulator.fabric.link_health import LinkHealth
from emulator.faults.survival import SurvivalPlan
from emulator.specs.fault import Fault, FaultKind, LinkTier
from emulator.specs.placement import EMPTY
from emulator.specs.seating import VACANT
from tests.emulator.faults.brute_force import most_ranks
from tests.emulator.faults.machine import (
    WEIGHTS,
    Machine,
    cut,
    lose,
    machine,
    pull,
    two_small_racks,
    with_copies,
)

pytestmark = pytest.mark.long

SMALL_RACKS = two_small_racks()
MACHINES = {
    "4 chips, full": machine(chips=4, experts=8),
    "4 chips, a slot free": machine(chips=4, experts=8, empty_slots=1),
    "4 chips, two slots free": machine(chips=4, experts=8, empty_slots=2),
    "4 chips, experts uneven": machine(chips=4, experts=6),
    "4 chips, a copy on each": with_copies(machine(chips=4, experts=8, empty_slots=1)),
    "4 chips, every expert twice": with_copies(machine(chips=4, experts=8, empty_slots=2)),
    "4 chips, room in spare HBM": replace(machine(chips=4, experts=8), spare_slots=1),
    "4 chips, full, a spare": machine(chips=4, experts=8, spares=1),
    "4 chips, a slot free, two spares": machine(chips=4, experts=8, empty_slots=1, spares=2),
    "4 chips in ranks of 2, a slot free": machine(chips=4, tp=2, experts=8, empty_slots=1),
    "4 chips in ranks of 2, a spare": machine(chips=4, tp=2, experts=8, empty_slots=1, spares=1),
    "4 chips in ranks of 2, each a group": machine(chips=4, tp=2, ep=2, experts=4, empty_slots=1),
    "4 chips in one rank of 2 groups": machine(chips=4, tp=4, ep=2, experts=4, spares=1),
    "4 chips, every expert on each": machine(chips=4, ep=1, experts=3, spares=1),
    "6 chips in ranks across groups": machine(chips=6, tp=2, ep=3, experts=3, empty_slots=1),
    "8 chips in two trays, a slot free": machine(chips=8, experts=8, empty_slots=1),
    "8 chips, a group per tray, a spare": machine(chips=8, ep=4, experts=4, spares=1),
    "8 chips in two racks": machine(chips=8, experts=8, empty_slots=1, system=SMALL_RACKS),
    "8 chips in two racks, a group in each": machine(
        chips=8, tp=2, ep=4, experts=4, empty_slots=1, system=SMALL_RACKS
    ),
    "7 chips and a spare in two racks": machine(
        chips=7, experts=14, empty_slots=1, spares=1, system=SMALL_RACKS
    ),
}


def faults_of(small: Machine) -> list[Fault]:
    """One fault of each kind, chip, tier and rack; of lanes all, or all but one."""
    chips = range(small.partition.chips + small.partition.spares)
    faults = [pull(rack) for rack in range(small.system.racks.count)]
    for chip in chips:
        faults += [
            lose(chip),
            Fault(kind=FaultKind.HANG_CHIP, chip=chip),
            Fault(kind=FaultKind.FAIL_STACK, chip=chip, stack=chip % 4),
            Fault(kind=FaultKind.SLOW_CHIP, chip=chip, factor=3),
            cut(chip, LinkTier.TRAY, 63),
            *(cut(chip, tier) for tier in LinkTier),
        ]
    return faults


def doubles_of(small: Machine) -> list[tuple[Fault, Fault]]:
    """Pairs of faults; hung chips, failed stacks and lanes cut in part are seen in the singles."""
    like_others = (FaultKind.HANG_CHIP, FaultKind.FAIL_STACK)
    distinct = [f for f in faults_of(small) if f.kind not in like_others and not f.lanes]
    return list(combinations(distinct, 2))


def check(small: Machine, faults: tuple[Fault, ...]) -> None:
    recovery = small.after(*faults)

    tried = most_ranks(small, faults)
    assert recovery.survivable == any(tried), faults
    up = recovery.ranks_up.reshape(len(tried), -1).sum(axis=1)
    if len(tried) == 1:
        assert up.tolist() == tried, faults
    else:  # blocks share the spares
        assert (up <= tried).all(), faults
        without_spares = machine_without_spares(small)
        home = [fault for fault in faults if fault.chip < small.partition.chips]
        assert (up >= most_ranks(without_spares, home)).all(), faults
    check_plan(small, recovery)
    check_links(small, recovery, faults)


@cache
def machine_without_spares(small: Machine) -> Machine:
    partition = small.partition
    return machine(
        chips=partition.chips,
        experts=small.placement.experts,
        ep=partition.ep,
        tp=partition.tp,
        empty_slots=small.placement.slots - -(-small.placement.experts // partition.ep),
        system=small.system,
    )


def check_plan(small: Machine, recovery: SurvivalPlan) -> None:
    """The transfers lead to the placement, move nothing else, and leave no expert of an open block
    without a slot."""
    seats = recovery.seating.chip_of_position
    old, new = small.placement.expert_of_slot, recovery.placement.expert_of_slot
    assert ((new != EMPTY).sum(axis=2) <= small.capacity()).all()
    assert (new[:, seats == VACANT] == EMPTY).all()

    changed = seats != np.arange(len(seats))
    expected = np.full_like(new, EMPTY)
    expected[:, :, : old.shape[2]] = np.where(changed[:, None], EMPTY, old)
    for each in recovery.reloads:
        assert each.source_chip == each.source_slot == -1
        overwritten = expected[each.layer, each.chip, each.slot]
        if overwritten != EMPTY:
            group = each.chip // small.partition.ep
            assert (group, each.layer, overwritten) not in recovery.placement.missing()
        expected[each.layer, each.chip, each.slot] = each.expert
    assert (expected == new).all()

    bytes_read = np.zeros(len(seats), dtype=np.int64)
    for each in recovery.reloads:
        bytes_read[each.chip] += WEIGHTS.expert_bytes
    for position, chip in recovery.restored:
        assert seats[position] == chip
        bytes_read[position] += WEIGHTS.replica_bytes
    assert (recovery.reload_bytes == bytes_read).all()

    missing_groups = {group for group, _, _ in recovery.placement.missing()}
    for rank in np.flatnonzero(recovery.ranks_up).tolist():
        positions = small.partition.chips_of_rank(rank)
        assert not missing_groups & {position // small.partition.ep for position in positions}
        assert VACANT not in seats[list(positions)]


def check_links(small: Machine, recovery: SurvivalPlan, faults: tuple[Fault, ...]) -> None:
    """Chips of a rank that is up reach all seated chips of their expert group."""
    health = small.health_after(faults)
    fabric = AllToAll(
        small.system,
        small.partition.chips,
        physical=recovery.seating.system_chips(small.partition),
        relays=recovery.seating.standby(health) + small.partition.first_chip,
        links=LinkHealth.of(health, small.system, small.partition),
    )
    seated = np.flatnonzero(recovery.seating.chip_of_position != VACANT)
    up = seated[recovery.ranks_up[seated // small.partition.tp]]
    assert health.in_service[recovery.seating.chip_of_position[seated]].all()
    together = up[:, None] // small.partition.ep == seated // small.partition.ep
    assert fabric.reachable()[np.ix_(up, seated)][together].all()


@pytest.mark.parametrize("name", MACHINES)
def test_every_single_fault_is_survived_just_when_trying_everything_finds_a_way(name: str) -> None:
    for fault in faults_of(MACHINES[name]):
        check(MACHINES[name], (fault,))


@pytest.mark.slow
@pytest.mark.parametrize("name", MACHINES)
def test_every_double_fault_is_survived_just_when_trying_everything_finds_a_way(name: str) -> None:
    small, impossible = MACHINES[name], 0
    for pair in doubles_of(small):
        try:
            small.health_after(pair)
        except ConfigError:
            impossible += 1  # both of one chip, or of one tier's lanes
            continue
        check(small, pair)
    assert impossible < len(doubles_of(small)) / 4
