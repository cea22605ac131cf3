"""Seating after a fault: kept chips, standby chips, closed blocks.

A block is the fewest consecutive positions that are whole ranks and whole expert groups. Its chips
exchange tokens and partial sums, so those kept must reach each other; blocks are independent. A
block is open with at least one complete rank and space for every expert in each of its groups.
"""

import math
from collections import defaultdict
from dataclasses import dataclass, replace

import numpy as np

from emulator.arrays import Bools, Int64s
from emulator.specs.health import Health
from emulator.specs.partition import Partition
from emulator.specs.seating import VACANT, Seating
from emulator.specs.system import SystemSpec

OUT_OF_SERVICE = -1


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Seats:
    """`seating` after a fault; `filled`: positions that a standby chip takes.

    Attributes:
        fenced: positions whose chip is in service, but cut off from the rest of its block.
        closed: the cause for each closed block.
        ranks_up: bool[ranks]: in an open block, with a chip in every position.
    """

    seating: Seating
    filled: tuple[int, ...]
    fenced: tuple[int, ...]
    closed: dict[int, str]
    ranks_up: Bools


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotCapacity:
    """Experts of one layer that each position can hold, int64[positions], and that a group needs.

    `lent` (leased) positions are not taken. Of equally good ones, `homes`, the standby chips' own
    numbers, come first.
    """

    capacity: Int64s
    experts: int
    lent: frozenset[int] = frozenset()
    homes: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Way:
    """One way to open a block: keep positions, and fill others with chips of one island."""

    island: int
    kept: list[int]
    fill: list[int]


def block_size(partition: Partition) -> int:
    """Positions of a block."""
    return math.lcm(partition.tp, partition.ep)


def islands(health: Health, reachable: Bools) -> Int64s:
    """The island of each chip, int64[chips]: its lowest chip in service; else OUT_OF_SERVICE.

    `reachable` is bool[chips, chips], true for chips that links join by any path.
    """
    in_service = health.in_service
    lowest = (reachable & in_service).argmax(axis=1)
    return np.where(in_service, lowest, OUT_OF_SERVICE)


def take_seats(
    partition: Partition,
    system: SystemSpec,
    health: Health,
    seating: Seating,
    *,
    room: SlotCapacity,
    reachable: Bools,
) -> Seats:
    """Seat chips so that as many blocks as possible are open, then as many ranks as possible.

    Fewest needs first. A returning chip goes home, others to the nearest seat. Ties go to the lower
    number.
    """
    island = islands(health, reachable)
    standby = defaultdict(list)
    for chip in seating.standby(health).tolist():
        standby[int(island[chip])].append(chip)
    room = replace(room, homes=frozenset(chip for chips in standby.values() for chip in chips))
    sitting = seating.chip_of_position
    sits_on = np.where(sitting == VACANT, OUT_OF_SERVICE, island[sitting])  # [positions]
    size = block_size(partition)
    blocks = [range(start, start + size) for start in range(0, partition.chips, size)]
    standing = sorted(standby)
    ways = [_ways(partition, block, sits_on, standing, room) for block in blocks]
    fewest = [min((len(way.fill) for way in options), default=size + 1) for options in ways]

    seats, opened, closed = sitting.copy(), {}, {}
    filling: defaultdict[int, list[int]] = defaultdict(list)  # positions, by island
    seats[sits_on == OUT_OF_SERVICE] = VACANT
    for number in sorted(range(len(blocks)), key=lambda number: (fewest[number], number)):
        block = blocks[number]
        possible = [
            way
            for way in ways[number]
            if len(way.fill) + len(filling[way.island]) <= len(standby[way.island])
        ]
        if not possible:
            closed[number] = _why_closed(partition, block, sits_on, room)
            continue
        way = min(possible, key=lambda way: (len(way.fill), -len(way.kept), way.island))
        opened[number] = way.island
        seats[[position for position in block if position not in way.kept]] = VACANT
        filling[way.island] += way.fill
    _complete_ranks(partition, seats, opened, standby, filling, room)
    for chips_of, positions in filling.items():
        _seat(positions, seats, standby[chips_of], partition, system)

    ranks_up = (seats != VACANT).reshape(partition.ranks, partition.tp).all(axis=1)
    first = np.arange(partition.ranks) * partition.tp // size  # the block of each rank
    ranks_up &= ~np.isin(first, list(closed))
    changed = seats != sitting
    return Seats(
        seating=Seating(chip_of_position=seats),
        filled=tuple(np.flatnonzero(changed & (seats != VACANT)).tolist()),
        fenced=tuple(np.flatnonzero(changed & (sits_on != OUT_OF_SERVICE)).tolist()),
        closed=dict(sorted(closed.items())),
        ranks_up=ranks_up,
    )


def _ways(
    partition: Partition, block: range, sits_on: Int64s, standing: list[int], room: SlotCapacity
) -> list[_Way]:
    """Every way to open a block, one per island with chips of it or for it."""
    own = {int(island) for island in sits_on[block] if island != OUT_OF_SERVICE}
    ways = []
    for island in sorted(own.union(standing)):
        kept = [position for position in block if sits_on[position] == island]
        fill = _fewest_to_fill(partition, block, kept, room)
        if fill is not None:
            ways.append(_Way(island=island, kept=kept, fill=fill))
    return ways


def _fewest_to_fill(
    partition: Partition, block: range, kept: list[int], room: SlotCapacity
) -> list[int] | None:
    """The fewest vacant positions that, filled, open a block; None when all of them do not."""
    seated = set(kept)
    ranks = range(partition.rank_of_chip(block.start), partition.rank_of_chip(block.stop))
    to_complete = {  # the same for all ranks that are complete
        tuple(chip for chip in partition.chips_of_rank(rank) if chip not in seated)
        for rank in ranks
        if room.lent.isdisjoint(partition.chips_of_rank(rank))
    }
    opening = [
        filled
        for fill in sorted(to_complete)
        if (filled := _fill_groups(partition, block, seated, fill, room)) is not None
    ]
    return min(opening, key=lambda fill: (len(fill), len(set(fill) - room.homes)), default=None)


def _fill_groups(
    partition: Partition, block: range, kept: set[int], fill: tuple[int, ...], room: SlotCapacity
) -> list[int] | None:
    """`fill` and the fewest further positions that give every group of a block enough room.

    Among equally roomy ones, those of ranks that lack fewest chips.
    """
    filled = list(fill)
    seated = kept.union(fill)

    def preference(position: int) -> tuple[int, int, bool, int]:
        mates = partition.chips_of_rank(partition.rank_of_chip(position))
        lacking = len(set(mates) - seated)
        return (-int(room.capacity[position]), lacking, position not in room.homes, position)

    for start in range(block.start, block.stop, partition.ep):
        group = range(start, start + partition.ep)
        held = sum(int(room.capacity[position]) for position in group if position in seated)
        vacant = [position for position in group if position not in seated | room.lent]
        for position in sorted(vacant, key=preference):
            if held >= room.experts:
                break
            held += int(room.capacity[position])
            filled.append(position)
        if held < room.experts:
            return None
    return filled


def _why_closed(partition: Partition, block: range, sits_on: Int64s, room: SlotCapacity) -> str:
    """A block's lack, in words, on the island of most of its chips."""
    alive = [position for position in block if sits_on[position] != OUT_OF_SERVICE]
    if not alive:
        return "no chip is in service"
    most = np.bincount(sits_on[alive]).argmax()
    joined = [position for position in alive if sits_on[position] == most]
    apart = [position for position in alive if sits_on[position] != most]
    cut = f" (no links join positions {joined[0]} and {apart[0]})" if apart else ""
    for start in range(block.start, block.stop, partition.ep):
        group = [position for position in joined if start <= position < start + partition.ep]
        slots = int(room.capacity[group].sum())
        if slots < room.experts:
            return f"{room.experts} experts do not fit into the {slots} slots that are left{cut}"
    return f"every rank lacks one of its {partition.tp} chips{cut}"


def _complete_ranks(
    partition: Partition,
    seats: Int64s,
    opened: dict[int, int],
    standby: dict[int, list[int]],
    filling: dict[int, list[int]],
    room: SlotCapacity,
) -> None:
    """Add positions that complete ranks of open blocks to `filling`, as standby chips allow."""
    size = block_size(partition)
    vacant = set(np.flatnonzero(seats == VACANT).tolist()).difference(*filling.values())
    vacancies = {
        rank: sorted(vacant.intersection(partition.chips_of_rank(rank)))
        for rank in range(partition.ranks)
        if rank * partition.tp // size in opened
        and room.lent.isdisjoint(partition.chips_of_rank(rank))
    }
    needs = {  # positions to fill, and those of them that somebody else's chip would take
        rank: (len(missing), len(set(missing) - room.homes)) for rank, missing in vacancies.items()
    }
    for rank in sorted(vacancies, key=lambda rank: (needs[rank], rank)):
        island = opened[rank * partition.tp // size]
        if len(vacancies[rank]) + len(filling[island]) <= len(standby[island]):
            filling[island] += vacancies[rank]


def _seat(
    positions: list[int],
    seats: Int64s,
    standby: list[int],
    partition: Partition,
    system: SystemSpec,
) -> None:
    """Seat standby chips at vacant positions; changes `seats` and `standby`.

    A chip goes to its own number, else the nearest goes: same tray, same rack, lowest number.
    """
    for position in sorted(positions, key=lambda position: (position not in standby, position)):
        here = np.array([position, *standby]) + partition.first_chip
        tray, rack = here // system.chips_per_tray.count, here // system.chips_per_rack
        chosen = min(
            range(len(standby)),
            key=lambda index: (
                standby[index] != position,
                tray[index + 1] != tray[0],
                rack[index + 1] != rack[0],
                standby[index],
            ),
        )
        seats[position] = standby.pop(chosen)
