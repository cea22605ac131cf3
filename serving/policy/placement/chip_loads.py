"""Load of each chip under a placement: copies share an expert's pairs evenly within a group of `ep`
chips. A load is [layers, experts], the same for every group, or [groups, layers, experts].
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from emulator.specs.placement import EMPTY, ExpertPlacement

F64 = NDArray[np.float64]
Load = NDArray[np.integer[Any]] | NDArray[np.floating[Any]]


def loads_by_group(load: Load, groups: int) -> F64:
    """Load of each group: float64[groups, layers, experts]; raises ValueError for another number of
    groups, and negative or infinite loads.
    """
    loads = np.asarray(load, dtype=np.float64)
    if loads.ndim == 2:
        loads = np.broadcast_to(loads, (groups, *loads.shape))
    if loads.ndim != 3 or len(loads) != groups:
        raise ValueError(
            f"a load is [layers, experts] or [{groups} groups, layers, experts], not {load.shape}"
        )
    if not (np.isfinite(loads).all() and (loads >= 0).all()):
        raise ValueError("a load is made of finite numbers of at least 0")
    return loads


def chip_loads(load: Load, placement: ExpertPlacement) -> F64:
    """Load of each chip in each layer: float64[layers, chips]; raises ValueError for another shape,
    and load on an expert without a slot in its group.
    """
    layers, chips, ep = placement.layers, placement.chips, placement.ep
    loads = loads_by_group(load, chips // ep)
    if loads.shape[1:] != (layers, placement.experts):
        raise ValueError(f"a load of {loads.shape[1:]}, a placement of {layers, placement.experts}")
    copies = placement.copies()  # [groups, layers, experts]
    lost = np.argwhere((copies == 0) & (loads > 0))
    if len(lost):
        group, layer, expert = lost[0]
        raise ValueError(f"expert {expert} of layer {layer} has load and no slot in group {group}")
    per_copy = loads / np.maximum(copies, 1)
    layer, chip, slot = np.nonzero(placement.expert_of_slot != EMPTY)
    expert = placement.expert_of_slot[layer, chip, slot]
    result = np.zeros((layers, chips))
    np.add.at(result, (layer, chip), per_copy[chip // ep, layer, expert])
    return result


def chip_loads_slowly(load: Load, placement: ExpertPlacement) -> F64:
    """The reference of `chip_loads`, one slot at a time."""
    loads = loads_by_group(load, placement.chips // placement.ep)
    copies = placement.copies()
    result = np.zeros((placement.layers, placement.chips))
    for layer, chips in enumerate(placement.expert_of_slot):
        for chip, slots in enumerate(chips):
            group = chip // placement.ep
            for expert in slots[slots != EMPTY]:
                share = loads[group, layer, expert] / copies[group, layer, expert]
                result[layer, chip] += share
    return result
