"""Survival by brute force: every seating and every placement of experts, from the faults alone.

Shares no code with the recovery; keeps its own account of chips, lanes and islands.
"""

from collections.abc import Iterator, Sequence
from functools import cache
from itertools import product

from emulator.specs.fault import Fault, FaultKind, LinkTier
from tests.emulator.faults.machine import Machine

DEADLY = {FaultKind.LOSE_CHIP, FaultKind.HANG_CHIP, FaultKind.FAIL_STACK}
LANES = {LinkTier.TRAY: 64, LinkTier.BACKPLANE: 80, LinkTier.CROSS_RACK: 16}
LANES_PER_SWITCH_TRAY = 8


def most_ranks(machine: Machine, faults: Sequence[Fault]) -> list[int]:
    """The most ranks of each block that can be up, each block having all spares to itself."""
    island = tuple(_islands(machine, faults))
    return [_most_ranks_of_block(machine, block, island) for block in _blocks(machine)]


@cache
def _most_ranks_of_block(
    machine: Machine, block: tuple[int, ...], island: tuple[int | None, ...]
) -> int:
    partition = machine.partition
    best = 0
    for seats in _seatings(machine, block, island):
        seated = {position for position, chip in zip(block, seats, strict=True) if chip is not None}
        ranks = {position // partition.tp for position in block}
        up = sum({*partition.chips_of_rank(rank)} <= seated for rank in ranks)
        groups = {position // partition.ep for position in block}
        if up > best and all(
            _experts_fit(
                machine.placement.experts,
                tuple(int(machine.capacity()[p]) for p in sorted(seated) if p // partition.ep == g),
            )
            for g in groups
        ):
            best = up
    return best


def _seatings(
    machine: Machine, block: tuple[int, ...], island: tuple[int | None, ...]
) -> Iterator[tuple[int | None, ...]]:
    """Every way to give each position its chip, a spare or none, all of one island."""
    spares = range(machine.partition.chips, len(island))
    choices = [[None, position, *spares] for position in block]
    for seats in product(*choices):
        chips = [chip for chip in seats if chip is not None]
        if len(set(chips)) < len(chips) or any(island[chip] is None for chip in chips):
            continue
        if len({island[chip] for chip in chips}) <= 1:
            yield seats


@cache
def _experts_fit(experts: int, capacity: tuple[int, ...]) -> bool:
    """Whether each expert in turn finds a chip with a free slot."""
    if not experts:
        return True
    return any(
        _experts_fit(experts - 1, (*capacity[:chip], slots - 1, *capacity[chip + 1 :]))
        for chip, slots in enumerate(capacity)
        if slots
    )


def _blocks(machine: Machine) -> list[tuple[int, ...]]:
    """Positions tied by a rank or an expert group, transitively."""
    tied = {position: {position} for position in range(machine.partition.chips)}
    for size in (machine.partition.tp, machine.partition.ep):
        for start in range(0, machine.partition.chips, size):
            together = set().union(*(tied[start + step] for step in range(size)))
            for position in together:
                tied[position] = together
    return sorted({tuple(sorted(together)) for together in tied.values()})


def _islands(machine: Machine, faults: Sequence[Fault]) -> list[int | None]:
    """For each chip the lowest one reachable over links; None for dead ones."""
    chips = machine.partition.chips + machine.partition.spares
    dead = {fault.chip for fault in faults if fault.kind in DEADLY}
    island: list[int | None] = [None] * chips
    for first in range(chips):
        waiting = [first] if first not in dead and island[first] is None else []
        while waiting:
            chip = waiting.pop()
            island[chip] = first
            left = [chip for chip in range(chips) if chip not in dead and island[chip] is None]
            waiting += [other for other in left if _joined(machine, faults, chip, other)]
    return island


def _joined(machine: Machine, faults: Sequence[Fault], one: int, other: int) -> bool:
    trays = [chip // machine.system.chips_per_tray.count for chip in (one, other)]
    racks = [chip // machine.system.chips_per_rack for chip in (one, other)]
    if racks[0] != racks[1]:
        tiers = [LinkTier.CROSS_RACK]
    elif trays[0] != trays[1]:
        tiers = [LinkTier.BACKPLANE]
    else:
        tiers = [LinkTier.TRAY, LinkTier.BACKPLANE]
    return any(
        all(_lanes(faults, chip, racks[0], tier) > 0 for chip in (one, other)) for tier in tiers
    )


def _lanes(faults: Sequence[Fault], chip: int, rack: int, tier: LinkTier) -> int:
    left = LANES[tier]
    for fault in faults:
        if fault.kind is FaultKind.CUT_LINK and (fault.chip, fault.tier) == (chip, tier):
            left -= fault.lanes or left
        if (fault.kind, fault.rack, tier) == (
            FaultKind.PULL_SWITCH_TRAY,
            rack,
            LinkTier.BACKPLANE,
        ):
            left -= LANES_PER_SWITCH_TRAY
    return left
