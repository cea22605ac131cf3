"""Applies the machine's recovery to the live chips."""

from collections.abc import Collection

import numpy as np
from numpy.typing import NDArray

from emulator.faults.reloads import plan_reloads
from emulator.faults.survival import SurvivalPlan
from emulator.fleet import Fleet
from emulator.specs.partition import Partition
from emulator.specs.seating import VACANT, Seating

I64 = NDArray[np.int64]


def positions_vacated(before: Seating, recovery: SurvivalPlan) -> I64:
    """Positions whose chip has gone, replaced or not: ascending."""
    old, new = before.chip_of_position, recovery.seating.chip_of_position
    return np.flatnonzero((old != new) & (old != VACANT))


def ranks_without_kv(before: Seating, recovery: SurvivalPlan, partition: Partition) -> set[int]:
    """Ranks whose requests are computed again: a chip of theirs went or came, or they closed."""
    vacated = positions_vacated(before, recovery).tolist()
    ranks = {partition.rank_of_chip(position) for position in vacated}
    return ranks | set(recovery.restarted_ranks) | set(recovery.lost_ranks)


def follow(
    fleet: Fleet,
    before: Seating,
    recovery: SurvivalPlan,
    partition: Partition,
    *,
    lost_ranks: Collection[int],
    same_model: bool,
) -> None:
    """Remove the chips that are gone, start those that take seats, fill slots again.

    With `same_model` experts lie as the recovery says; else a stand-in's go to the same chips,
    which always have room, as its HBM is not emulated.

    Raises:
        ChipLost: another chip was lost meanwhile; the same call with a new recovery goes on.
    """
    vacated = positions_vacated(before, recovery)
    filled = np.array([position for position, _ in recovery.restored], dtype=np.int64)
    # A recovery before this one that was broken off may have seated chips that now go elsewhere.
    vacant = np.flatnonzero(recovery.seating.chip_of_position == VACANT)
    leaving = {*vacated.tolist(), *filled.tolist(), *vacant.tolist()} & fleet.live_chips
    fleet.remove(sorted(leaving), lost_ranks)
    placement, reloads = recovery.placement, recovery.reloads
    if not same_model:
        seated = np.flatnonzero(recovery.seating.chip_of_position != VACANT)
        ranks_up = np.flatnonzero(recovery.ranks_up)
        open_positions = [p for rank in ranks_up for p in partition.chips_of_rank(int(rank))]
        plan = plan_reloads(
            fleet.placement,
            gone=vacated,
            filled=filled,
            seated=seated,
            capacity=np.full(partition.chips, fleet.placement.experts, dtype=np.int64),
            groups=np.unique(np.array(open_positions, dtype=np.int64) // partition.ep),
        )
        placement, reloads = plan.placement, plan.transfers
    for position in filled.tolist():
        fleet.add(position, placement)
    arriving = set(filled.tolist())
    fleet.place(placement, [each for each in reloads if each.chip not in arriving])
