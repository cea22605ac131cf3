"""Imbalance of a placement: the busiest chip's load over the mean.

An expert's pairs in a group of `ep` chips are shared evenly by its copies there. A load is [layers,
experts], the same for every group, or [groups, layers, experts]. Means leave out chips that are not
`usable`, and include idle ones.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from emulator.specs.placement import EMPTY, ExpertPlacement

F64 = NDArray[np.float64]
Bools = NDArray[np.bool_]
Load = NDArray[np.integer[Any]] | NDArray[np.floating[Any]]


def loads_by_group(load: Load, groups: int) -> F64:
    """Load of each group: float64[groups, layers, experts].

    Raises ValueError for another number of groups, and for negative or infinite loads.
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
    """Load of each chip in each layer: float64[layers, chips].

    Raises ValueError for a load of another shape, and for load on an expert without a slot in its
    group.
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


def imbalance(load: Load, placement: ExpertPlacement, usable: Bools | None = None) -> F64:
    """The busiest chip's load over the mean: float64[layers]; 1.0 without load.

    A lockstep waits for its busiest chip, so a layer's experts take this many times as long as
    balanced ones. Raises as `chip_loads`.
    """
    live = _live(usable, placement)
    return _max_over_mean(chip_loads(load, placement)[:, live])


def _live(usable: Bools | None, placement: ExpertPlacement) -> Bools:
    if usable is None:
        return np.ones(placement.chips, dtype=np.bool_)
    if usable.shape != (placement.chips,):
        raise ValueError(f"usable is bool[{placement.chips}], not {usable.shape}")
    return usable


def _max_over_mean(loads: F64) -> F64:
    """[layers, chips] -> [layers]."""
    total = loads.sum(axis=1)
    busiest = loads.max(axis=1, initial=0.0)
    return np.where(total > 0, busiest * loads.shape[1] / np.where(total > 0, total, 1.0), 1.0)
