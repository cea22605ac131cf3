"""Whether a group of chips can leave a serving machine, and the expert placement without it.

Pure. A group is whole ranks; the remaining chips of an expert group must hold its experts.
"""

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np

from emulator.arrays import Bools, Int64s
from emulator.errors import ConfigError
from emulator.faults.reloads import plan_reloads
from emulator.faults.seats import block_size
from emulator.specs.partition import Partition
from emulator.specs.placement import ExpertPlacement
from emulator.specs.seating import VACANT, Seating


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Departure:
    """The experts' move when `positions` leave.

    Attributes:
        placement: contents before they leave: every expert of each open group on staying positions,
            the old ones on leaving ones. It may have more slots.
        copied: expert copies, each of one layer, for staying positions.
        slots_needed: experts of a layer that the tightest group needs; `slots_there`: memory of its
            staying positions, in experts of a layer.
    """

    positions: tuple[int, ...]
    placement: ExpertPlacement
    copied: int
    slots_needed: int
    slots_there: int


def departure(
    placement: ExpertPlacement,
    partition: Partition,
    *,
    leaving: Collection[int],
    seating: Seating,
    ranks_up: Bools,
    capacity: Int64s,
    others_serve: bool = False,
) -> Departure:
    """Expert placement for `leaving`, positions of whole ranks.

    `ranks_up`, bool[ranks], take requests; `capacity`, int64[positions]: memory in experts of a
    layer. Where `others_serve`, other machines, no rank has to stay. Raises ConfigError, with the
    figures, when no rank would stay up, or experts of an open group do not fit.
    """
    gone = np.array(sorted(leaving), dtype=np.int64)
    named = ", ".join(str(int(rank)) for rank in np.unique(gone // partition.tp))
    staying = ranks_up.copy()
    staying[gone // partition.tp] = False
    if not staying.any() and others_serve:
        return Departure(
            positions=tuple(gone.tolist()),
            placement=placement,
            copied=0,
            slots_needed=0,
            slots_there=0,
        )
    if not staying.any():
        raise ConfigError("ranks to lend", named, "ranks of which at least one other one stays up")
    seated = np.setdiff1d(np.flatnonzero(seating.chip_of_position != VACANT), gone)
    groups = _groups_of_open_blocks(partition, staying)
    slots_needed = slots_there = 0
    if placement.layers:
        slots_needed = placement.experts
        held = np.zeros(partition.chips, dtype=np.int64)
        held[seated] = capacity[seated]
        by_group = held.reshape(-1, partition.ep).sum(axis=1)[groups]  # [groups that go on]
        slots_there = int(by_group.min())
        if slots_there < slots_needed:
            group = int(groups[by_group.argmin()])
            raise ConfigError(
                "ranks to lend",
                named,
                f"ranks without which the {slots_needed} experts of a layer still fit: "
                f"expert group {group} has memory for {slots_there} on the chips that stay",
            )
    plan = plan_reloads(
        placement,
        gone=gone,
        filled=np.zeros(0, dtype=np.int64),
        seated=seated,
        capacity=capacity,
        groups=groups,
    )
    slots = plan.placement.expert_of_slot.copy()
    slots[:, gone, : placement.slots] = placement.expert_of_slot[:, gone]
    return Departure(
        positions=tuple(gone.tolist()),
        placement=ExpertPlacement(experts=placement.experts, ep=placement.ep, expert_of_slot=slots),
        copied=len(plan.transfers),
        slots_needed=slots_needed,
        slots_there=slots_there,
    )


def home_on(
    home: ExpertPlacement,
    partition: Partition,
    *,
    seating: Seating,
    ranks_up: Bools,
    capacity: Int64s,
) -> ExpertPlacement:
    """`home` on the present chips, plus displaced experts; ValueError if they do not fit."""
    vacant = np.flatnonzero(seating.chip_of_position == VACANT)
    plan = plan_reloads(
        home,
        gone=vacant,
        filled=np.zeros(0, dtype=np.int64),
        seated=np.flatnonzero(seating.chip_of_position != VACANT),
        capacity=capacity,
        groups=_groups_of_open_blocks(partition, ranks_up),
    )
    return plan.placement


def _groups_of_open_blocks(partition: Partition, ranks_up: Bools) -> Int64s:
    size = block_size(partition)
    blocks = np.unique(np.flatnonzero(ranks_up) * partition.tp // size)
    of_block = np.arange(size // partition.ep)
    groups: Int64s = (blocks[:, None] * (size // partition.ep) + of_block).ravel()
    return groups
