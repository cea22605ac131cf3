"""Load of each expert, and of each chip under a placement: copies share an expert's pairs evenly
within a group of `ep` chips. A load is [layers, experts], the same for every group, or [groups,
layers, experts].

An expert's load is of a moving window over steps, in whole tokens.
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


I64 = NDArray[np.int64]


class ExpertWindow:
    """Router decisions of the last `window_steps` steps, by layer and logical expert.

    Memory: at most window_steps * layers * experts * 8 bytes. Integer sums leave no residue.
    """

    def __init__(self, *, window_steps: int, layers: int, experts: int) -> None:
        assert min(window_steps, layers, experts) >= 1, (window_steps, layers, experts)
        self._window: I64 = np.zeros((window_steps, layers, experts), dtype=np.int64)
        self._total: I64 = np.zeros((layers, experts), dtype=np.int64)
        self._added = 0

    @property
    def steps(self) -> int:
        """Steps in the window now."""
        return min(self._added, len(self._window))

    def add(self, counts: NDArray[np.integer[Any]]) -> None:
        """Add one step: counts[layers, experts] of (token, expert) pairs; the oldest step leaves.
        Raises ValueError for another shape, non-integers and negative counts.
        """
        if counts.shape != self._total.shape or not np.issubdtype(counts.dtype, np.integer):
            raise ValueError(
                f"counts are integers[layers, experts] of {self._total.shape}, "
                f"not {counts.dtype}{counts.shape}"
            )
        if counts.min() < 0:
            raise ValueError(f"counts are at least 0, not {counts.min()}")
        oldest = self._window[self._added % len(self._window)]
        self._total += counts - oldest
        oldest[:] = counts
        self._added += 1

    def total(self) -> I64:
        """Pairs of all steps in the window: int64[layers, experts], a copy."""
        return self._total.copy()

    def total_slowly(self) -> I64:
        """The same, summed anew over the window."""
        total: I64 = self._window.sum(axis=0)
        return total
