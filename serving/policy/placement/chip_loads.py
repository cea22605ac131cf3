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

    They are kept in rows of `row_steps` steps, and leave a row at a time. Memory: at most
    window_steps / row_steps * layers * experts * 8 bytes. Integer sums leave no residue.
    """

    def __init__(self, *, window_steps: int, layers: int, experts: int, row_steps: int = 1) -> None:
        assert min(window_steps, layers, experts, row_steps) >= 1
        assert window_steps % row_steps == 0, (window_steps, row_steps)
        rows = window_steps // row_steps
        self._window: I64 = np.zeros((rows, layers, experts), dtype=np.int64)
        self._total: I64 = np.zeros((layers, experts), dtype=np.int64)
        self._row_steps = row_steps
        self._added = 0

    @property
    def steps(self) -> int:
        """Steps in the window now."""
        rows_before = max(0, -(-self._added // self._row_steps) - len(self._window))
        return self._added - rows_before * self._row_steps

    @property
    def row_left(self) -> int:
        """Steps that the row under way still takes, or those of a new one."""
        return self._row_steps - self._added % self._row_steps

    def add(self, counts: NDArray[np.integer[Any]], *, steps: int = 1) -> None:
        """Add one step, or several of a row together: counts[layers, experts] of (token, expert)
        pairs; where a row begins, the oldest leaves. Raises ValueError for another shape,
        non-integers, negative counts and more steps than the row takes.
        """
        if counts.shape != self._total.shape or not np.issubdtype(counts.dtype, np.integer):
            raise ValueError(
                f"counts are integers[layers, experts] of {self._total.shape}, "
                f"not {counts.dtype}{counts.shape}"
            )
        if counts.min() < 0:
            raise ValueError(f"counts are at least 0, not {counts.min()}")
        if not 0 < steps <= self.row_left:
            raise ValueError(f"from 1 to {self.row_left} steps go into the row, not {steps}")
        row = self._window[self._added // self._row_steps % len(self._window)]
        if self._added % self._row_steps == 0:
            self._total -= row
            row[:] = 0
        self._total += counts
        row += counts
        self._added += steps

    def total(self) -> I64:
        """Pairs of all steps in the window: int64[layers, experts], a copy."""
        return self._total.copy()

    def total_slowly(self) -> I64:
        """The same, summed anew over the window."""
        total: I64 = self._window.sum(axis=0)
        return total
