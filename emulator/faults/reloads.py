"""Experts to read again from the checkpoint, and their slots.

A replacement chip gets its seat's experts. An expert without a copy in its group goes to the
group's chip with fewest in that layer: into an empty slot, spare HBM, or over an expert with
several copies.
"""

from dataclasses import dataclass

import numpy as np

from emulator.arrays import Int64s
from emulator.specs.placement import EMPTY, ExpertPlacement, ExpertTransfer

FROM_CHECKPOINT = -1


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Reloads:
    """`transfers` lead to `placement`, which has more slots if spare HBM is used.

    `taken_over`: (group, layer, expert) of a lost chip with another copy in the group: no reads.
    """

    transfers: tuple[ExpertTransfer, ...]
    placement: ExpertPlacement
    taken_over: int


def plan_reloads(
    placement: ExpertPlacement,
    *,
    gone: Int64s,
    filled: Int64s,
    seated: Int64s,
    capacity: Int64s,
    groups: Int64s,
) -> Reloads:
    """Reads after positions `gone` have lost their content.

    `filled` have a chip again; `seated` are all with one. Only `groups` are made whole. `capacity`,
    int64[positions]: memory in slots of a layer. Raises ValueError when a group's experts do not
    fit.
    """
    left = placement.without(gone.tolist())
    # [layers, positions, slots that some position can have]
    slots = left.padded(int(capacity.max(initial=0)))
    slots[:, filled, : placement.slots] = placement.expert_of_slot[:, filled]
    transfers = [
        _from_checkpoint(layer, int(position), slot, int(slots[layer, position, slot]))
        for position in filled
        for layer, slot in np.argwhere(slots[:, position] != EMPTY).tolist()
    ]
    for group in groups.tolist():
        members = seated[seated // placement.ep == group]
        for layer in range(placement.layers):
            transfers += _settle(slots[layer], layer, members, capacity, placement.experts)
    used = np.flatnonzero((slots != EMPTY).any(axis=(0, 1))).max(initial=placement.slots - 1) + 1
    stay = np.setdiff1d(np.arange(placement.chips), gone).tolist()
    twice = (placement.without(stay).copies() > 0) & (left.copies() > 0)
    return Reloads(
        transfers=tuple(transfers),
        placement=ExpertPlacement(
            experts=placement.experts, ep=placement.ep, expert_of_slot=slots[:, :, :used].copy()
        ),
        taken_over=int(twice[groups].sum()),  # of [groups, layers, experts]
    )


def _settle(
    slots: Int64s, layer: int, members: Int64s, capacity: Int64s, experts: int
) -> list[ExpertTransfer]:
    copies = np.zeros(experts, dtype=np.int64)
    held = slots[members]
    np.add.at(copies, held[held != EMPTY], 1)
    filled = (held != EMPTY).sum(axis=1)  # [members]
    got = np.zeros(len(members), dtype=np.int64)
    transfers = []
    for expert in np.flatnonzero(copies == 0).tolist():
        free = np.flatnonzero(filled < capacity[members])
        if len(free):
            member = free[filled[free].argmin()]
            slot = int(np.flatnonzero(slots[members[member]] == EMPTY)[0])
            filled[member] += 1
        else:
            member, slot = _most_copied(slots[members], copies, got)
            copies[slots[members[member], slot]] -= 1
        got[member] += 1
        position = int(members[member])
        slots[position, slot] = expert
        copies[expert] = 1
        transfers.append(_from_checkpoint(layer, position, slot, expert))
    return transfers


def _most_copied(held: Int64s, copies: Int64s, got: Int64s) -> tuple[int, int]:
    """The member and slot with the most copied expert, of the member with fewest reads so far;
    ValueError when no expert has two copies.
    """
    many = np.where(held == EMPTY, 0, copies[held])  # [members, slots]
    if many.max(initial=0) < 2:
        raise ValueError("the experts of a group do not fit into its slots")
    member, slot = np.nonzero(many == many.max())
    first = int(got[member].argmin())
    return int(member[first]), int(slot[first])


def _from_checkpoint(layer: int, position: int, slot: int, expert: int) -> ExpertTransfer:
    return ExpertTransfer(
        layer=layer,
        expert=expert,
        source_chip=FROM_CHECKPOINT,
        source_slot=FROM_CHECKPOINT,
        chip=position,
        slot=slot,
    )
