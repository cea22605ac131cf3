"""Usable chips of an expert-parallel group as a tree of equal parts: racks, trays, chips."""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

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
