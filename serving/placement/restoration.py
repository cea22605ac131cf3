"""Puts back the experts that lost chips took with them, with one move for each.

`rebalance` would serve better afterwards, and moves about half of all weights; this is what brings
a layer back to life. An expert of which another copy is left in its group is not lost.
"""

import numpy as np
from numpy.typing import NDArray

from emulator.errors import ConfigError
from emulator.specs.placement import EMPTY, ExpertPlacement
from serving.placement.imbalance import Load, loads_by_group

I64 = NDArray[np.int64]
F64 = NDArray[np.float64]
Bools = NDArray[np.bool_]


def restore(load: Load, placement: ExpertPlacement, usable: Bools) -> ExpertPlacement:
    """Empty the chips that are not `usable` and give each expert that is then missing a slot.

    The heaviest comes first. It takes an empty slot, or one whose expert lies elsewhere in the
    group too: the one with which the busiest of the chips concerned (its own, and those that hold
    the given-up expert) has the least load. Ties go to the lowest chip, then the lowest slot.
    `load` is [layers, experts] or [groups, layers, experts].

    Raises ConfigError when the usable chips of a group have fewer slots than there are experts.
    """
    ep, experts = placement.ep, placement.experts
    loads = loads_by_group(load, placement.chips // ep)
    left = placement.without(np.flatnonzero(~usable).tolist())
    slots = left.expert_of_slot.copy()
    missing: dict[tuple[int, int], list[int]] = {}
    for group, layer, expert in left.missing():
        missing.setdefault((group, layer), []).append(expert)
    for (group, layer), lost in missing.items():
        members = group * ep + np.flatnonzero(usable[group * ep : (group + 1) * ep])
        if len(members) * placement.slots < experts:
            raise ConfigError(
                field="slots",
                value=placement.slots,
                expected=f"a slot for each of {experts} experts on the {len(members)} usable chips "
                f"of expert group {group}"
                + (f", {-(-experts // len(members))} a chip" if len(members) else ""),
            )
        held = slots[layer, members]  # [live chips, slots]
        weights = loads[group, layer]
        for expert in sorted(lost, key=lambda e: (-weights[e], e)):
            held[_cheapest_slot(held, weights, weights[expert])] = expert
        slots[layer, members] = held
    return ExpertPlacement(experts=experts, ep=ep, expert_of_slot=slots)


def _cheapest_slot(held: I64, weights: F64, arriving: float) -> tuple[int, int]:
    """The (chip, slot) of held[chips, slots] to give up for an expert of load `arriving`."""
    filled = held != EMPTY
    copies = np.bincount(held[filled], minlength=len(weights))  # [experts]
    share = weights / np.maximum(copies, 1)
    shares = np.where(filled, share[held], 0.0)  # [chips, slots]
    chip_load = shares.sum(axis=1, keepdims=True)  # [chips, 1]
    # The experts' other copies take over what the given-up one computed.
    busiest = np.zeros(len(weights))
    np.maximum.at(busiest, held[filled], np.broadcast_to(chip_load, held.shape)[filled])
    elsewhere = busiest - share + weights / np.maximum(copies - 1, 1)
    after = np.maximum(chip_load - shares + arriving, np.where(filled, elsewhere[held], 0.0))
    free = ~filled | (copies[held] > 1)
    chip, slot = np.unravel_index(np.where(free, after, np.inf).argmin(), held.shape)
    return int(chip), int(slot)
