"""Assigns experts to slots by how often each is chosen.

After DeepSeek's EPLB (github.com/deepseek-ai/EPLB, and section 3.4 of the DeepSeek-V3 report, arXiv
2412.19437): heavy experts get copies, which are packed onto racks, then trays, then chips, in equal
numbers and to nearly equal loads. Where the router is limited to groups of experts and racks divide
the groups, whole groups go to racks and are copied inside them; otherwise copies are made over the
whole expert-parallel group. Levels whose parts have unequally many usable chips are skipped.

All layers are balanced at once; "rows" are (expert-parallel group, layer) pairs.
"""

from collections import defaultdict
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from emulator.errors import ConfigError
from emulator.specs.placement import EMPTY, ExpertPlacement
from serving.policy.placement.chip_loads import Load, loads_by_group
from serving.policy.placement.migration import keep_settled
from serving.policy.placement.packing import keep_slots, match_packs, pack, part_twins, replicate

I64 = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChipTree:
    """`chips` in the order of the leaves; `parts`: divisions per level, top first, whose product is
    their number. Racks, and trays, form a level when equally large; else `racks` is 1.
    """

    chips: tuple[int, ...]
    parts: tuple[int, ...]
    racks: int

    @classmethod
    def of(cls, chips: I64, *, tray_of_chip: I64, rack_of_chip: I64) -> "ChipTree":
        """The tree of `chips`; a tray's number belongs to one rack alone."""
        assert len(chips), "a tree has chips"
        order = chips[np.lexsort((chips, tray_of_chip[chips], rack_of_chip[chips]))]
        racks = _equal_parts(rack_of_chip[order])
        trays = _equal_parts(tray_of_chip[order])
        borders = [1]  # parts of the whole at each level: each divides the next
        for count in (racks, trays, len(order)):
            if count > borders[-1]:
                borders.append(count)
        parts = tuple(below // above for above, below in pairwise(borders)) or (1,)
        return cls(chips=tuple(order.tolist()), parts=parts, racks=racks)


def _equal_parts(part_of_chip: I64) -> int:
    """The number of parts when all have equally many chips, else 1."""
    _, sizes = np.unique(part_of_chip, return_counts=True)
    return len(sizes) if np.all(sizes == sizes[0]) else 1


F64 = NDArray[np.float64]
Bools = NDArray[np.bool_]


def rebalance(
    load: Load,
    *,
    slots: int,
    ep: int,
    tray_of_chip: I64,
    rack_of_chip: I64,
    usable: Bools | None = None,
    previous: ExpertPlacement | None = None,
    expert_groups: int = 1,
) -> ExpertPlacement:
    """Place every expert of every layer at least once on the usable chips of each group.

    Args:
        load: [layers, experts], the same for every group, or [groups, layers, experts].
        slots: of each chip in each layer. All are filled, unless a chip can hold every expert: no
            chip holds an expert twice.
        ep: chips of a group; groups are balanced separately.
        tray_of_chip: int64[chips], numbers that differ between racks.
        rack_of_chip: int64[chips].
        usable: bool[chips]; the others get nothing.
        previous: the present placement. A complete layer of a group stays unless its busiest chip
            would get less load; else experts keep chips and slots where balance allows.
        expert_groups: groups of consecutive experts that the router chooses first (1: none).

    Raises ConfigError when a group has too few slots, with the number needed; ValueError for arrays
    that do not match.
    """
    chips = len(tray_of_chip)
    live = np.ones(chips, dtype=np.bool_) if usable is None else usable
    if ep < 1 or chips % ep or len(rack_of_chip) != chips or live.shape != (chips,):
        raise ValueError(f"trays, racks and usable chips are arrays of whole groups of {ep} chips")
    loads = loads_by_group(load, chips // ep)
    _, layers, experts = loads.shape
    if previous is not None and (
        previous.expert_of_slot.shape != (layers, chips, slots)
        or (previous.experts, previous.ep) != (experts, ep)
    ):
        raise ValueError("the previous placement is of other layers, chips, slots or experts")
    placed = np.full((layers, chips, slots), EMPTY, dtype=np.int64)
    for alike in _alike_groups(live, ep, tray_of_chip, rack_of_chip):
        tree = next(iter(alike.values()))
        _check_slots(len(tree.chips), slots, experts)
        rows = loads[list(alike)].reshape(-1, experts)  # [groups * layers, experts]
        leaves = np.array([tree.chips for tree in alike.values()])  # [groups, chips]
        old = None
        if previous is not None:
            # [layers, groups, chips, slots] -> [groups * layers, chips, slots]
            old = previous.expert_of_slot[:, leaves].swapaxes(0, 1)
            old = old.reshape(len(rows), len(tree.chips), slots)
        new = _spread_rows(rows, tree, slots, expert_groups, old)
        by_group = new.reshape(len(alike), layers, len(tree.chips), slots)
        placed[:, leaves] = by_group.swapaxes(0, 1)
    balanced = ExpertPlacement(experts=experts, ep=ep, expert_of_slot=placed)
    if previous is None:
        return balanced
    return keep_settled(loads, previous, balanced, usable=live)


def _alike_groups(
    usable: Bools, ep: int, tray_of_chip: I64, rack_of_chip: I64
) -> list[dict[int, ChipTree]]:
    """Groups with equal trees, which can be balanced together."""
    alike: dict[tuple[tuple[int, ...], int], dict[int, ChipTree]] = defaultdict(dict)
    for group, members in enumerate(usable.reshape(-1, ep)):
        chips = group * ep + np.flatnonzero(members)
        if not len(chips):
            raise ConfigError("usable chips", 0, f"at least one in expert group {group}")
        tree = ChipTree.of(chips, tray_of_chip=tray_of_chip, rack_of_chip=rack_of_chip)
        alike[tree.parts, tree.racks][group] = tree
    return list(alike.values())


def _check_slots(chips: int, slots: int, experts: int) -> None:
    enough = -(-experts // chips)
    if slots < enough:
        raise ConfigError(
            "slots",
            slots,
            f"at least {enough} on each of the {chips} usable chips of an expert group, "
            f"for {experts} experts",
        )


def _spread_rows(load: F64, tree: ChipTree, slots: int, expert_groups: int, old: I64 | None) -> I64:
    """Place load[rows, experts] on a tree's chips: int64[rows, chips, slots], as `old`."""
    rows, experts = load.shape
    names = np.broadcast_to(np.arange(experts), load.shape)
    parts = tree.parts
    held = old
    if tree.racks > 1 and experts % expert_groups == 0 and expert_groups % tree.racks == 0:
        names = _groups_onto_racks(load, expert_groups, tree.racks, held)
        # The racks are done: each goes on as a row of its own.
        load = np.repeat(load, tree.racks, axis=0)
        load = np.take_along_axis(load, names, axis=1)
        parts = tree.parts[1:] or (1,)
        if held is not None:
            held = held.reshape(len(names), -1, slots)
    new = _copies_onto_chips(load, names, parts, slots, held, experts)
    new = new.reshape(rows, len(tree.chips), slots)
    return new if old is None else keep_slots(new, old)


def _groups_onto_racks(load: F64, expert_groups: int, racks: int, old: I64 | None) -> I64:
    """Deal whole groups of experts to racks: experts int64[rows * racks, experts / racks]."""
    rows, experts = load.shape
    by_group = load.reshape(rows, expert_groups, -1).sum(axis=2)
    group = np.broadcast_to(np.arange(expert_groups), by_group.shape)
    packed = pack(by_group, group, racks)  # [rows, racks, groups of a rack]
    size = experts // expert_groups
    members = (packed[..., None] * size + np.arange(size)).reshape(rows, racks, -1)
    if old is not None:
        order = match_packs(members, old.reshape(rows, racks, -1), experts)
        members = np.take_along_axis(members, order[..., None], axis=1)
    dealt: I64 = members.reshape(rows * racks, -1)
    return dealt


def _copies_onto_chips(
    load: F64, names: I64, parts: tuple[int, ...], slots: int, old: I64 | None, experts: int
) -> I64:
    """Copy and pack the experts names[rows, k] with load[rows, k]: int64[rows, chips, slots].

    Unused slots are EMPTY and come last. `experts`: the number that `old` knows.
    """
    rows, kinds = load.shape
    chips = int(np.prod(parts))
    filled = min(slots, kinds)
    copies = replicate(load, copies=chips * filled, most=chips)  # [rows, k]
    per_copy = load / copies
    kind = np.repeat(np.tile(np.arange(kinds), rows), copies.ravel()).reshape(rows, -1)
    row = np.arange(rows)
    for count in parts:  # kind: [rows of this level, copies]
        packed = pack(per_copy[row[:, None], kind], kind, count)  # [rows, count, size]
        packs = np.take_along_axis(kind[:, None], packed, axis=2)
        if old is not None:
            places = old.reshape(len(row), count, -1)
            order = match_packs(names[row[:, None, None], packs], places, experts)
            packs = np.take_along_axis(packs, order[..., None], axis=1)
        row = np.repeat(row, count)
        kind = packs.reshape(len(row), -1)
    held = kind.reshape(rows, chips, filled)
    in_order = np.sort(held, axis=2)
    for twins in np.flatnonzero((in_order[..., 1:] == in_order[..., :-1]).any(axis=(1, 2))):
        part_twins(held[twins], per_copy[twins])
    placed = np.full((rows, chips, slots), EMPTY, dtype=np.int64)
    placed[..., :filled] = names[np.arange(rows)[:, None, None], held]
    return placed
