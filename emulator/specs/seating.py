"""Seating: the chip in each position of the partition.

Ranks, expert groups and slots are numbered by position. The machine has a chip per position and
then its spares: chip i is chip `first_chip + i` of the system, at first in position i; when it
fails, a spare may take its seat.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np

from emulator.arrays import Int64s
from emulator.specs.health import Health
from emulator.specs.partition import Partition

VACANT: Final = -1


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Seating:
    """`chip_of_position` is int64[positions]: a chip of the machine, or VACANT.

    Raises ValueError for another shape or dtype, or a chip in two positions.
    """

    chip_of_position: Int64s

    def __post_init__(self) -> None:
        seats = self.chip_of_position
        if seats.ndim != 1 or seats.dtype != np.int64:
            raise ValueError(f"chip_of_position is int64[positions], not {seats.shape}")
        sitting = seats[seats != VACANT]
        if len(np.unique(sitting)) != len(sitting) or (seats < VACANT).any():
            raise ValueError(f"a chip sits in one position: {seats.tolist()}")

    @classmethod
    def home(cls, partition: Partition) -> "Seating":
        """Every chip in the position of its number; the spares stand by."""
        return cls(chip_of_position=np.arange(partition.chips, dtype=np.int64))

    def system_chips(self, partition: Partition) -> Int64s:
        """The chip of the system in each position, int64[positions], or VACANT."""
        seats = self.chip_of_position
        return np.where(seats == VACANT, VACANT, seats + partition.first_chip)

    def standby(self, health: Health) -> Int64s:
        """Chips of the machine in service without a seat, ascending."""
        return np.setdiff1d(np.flatnonzero(health.in_service), self.chip_of_position)
