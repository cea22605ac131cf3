"""Expert placement: the expert of each slot, shared by computing, timing and balancing.

A slot holds the weights of one logical expert in one layer, or is empty; an expert may be in
several.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np

from emulator.arrays import Int64s

EMPTY: Final = -1


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ExpertPlacement:
    """`expert_of_slot` is int64[layers, chips, slots], a logical expert or EMPTY.

    Each run of `ep` chips holds every expert, unless faults leave some `missing`. Raises ValueError
    for another shape, an unknown expert, or a fraction of a group.
    """

    experts: int
    ep: int
    expert_of_slot: Int64s

    def __post_init__(self) -> None:
        slots = self.expert_of_slot
        if slots.ndim != 3 or slots.dtype != np.int64:
            raise ValueError(f"expert_of_slot is int64[layers, chips, slots], not {slots.shape}")
        if slots.size and (slots.min() < EMPTY or slots.max() >= self.experts):
            raise ValueError(f"a slot holds one of {self.experts} experts, or {EMPTY}")
        if self.ep < 1 or self.chips % self.ep:
            raise ValueError(f"{self.chips} chips are not whole groups of {self.ep}")

    @classmethod
    def even(
        cls, *, layers: int, experts: int, chips: int, ep: int, spare_slots: int = 0
    ) -> "ExpertPlacement":
        """Spread experts evenly over each group in order; the first chips may have one more.

        Each chip gets ceil(experts / ep) + `spare_slots` slots; unused ones are EMPTY.
        """
        filled = -(-experts // ep)
        share = np.full(ep, experts // ep) + (np.arange(ep) < experts % ep)  # [ep]
        first = np.cumsum(share) - share
        slot = np.arange(filled + spare_slots)
        group = np.where(slot < share[:, None], first[:, None] + slot, EMPTY)  # [ep, slots]
        one_layer = np.tile(group, (chips // ep, 1))  # [chips, slots]
        every_layer = np.repeat(one_layer[None], layers, axis=0).astype(np.int64)
        return cls(experts=experts, ep=ep, expert_of_slot=every_layer)

    @property
    def layers(self) -> int:
        """Layers that have experts."""
        return int(self.expert_of_slot.shape[0])

    @property
    def chips(self) -> int:
        """Chips of the partition."""
        return int(self.expert_of_slot.shape[1])

    @property
    def slots(self) -> int:
        """Slots of each chip in each layer."""
        return int(self.expert_of_slot.shape[2])

    def copies(self) -> Int64s:
        """Copies of each expert in each group: int64[groups, layers, experts]."""
        groups = self.chips // self.ep
        counts = np.zeros((groups, self.layers, self.experts), dtype=np.int64)
        layer, chip, slot = np.nonzero(self.expert_of_slot != EMPTY)
        expert = self.expert_of_slot[layer, chip, slot]
        np.add.at(counts, (chip // self.ep, layer, expert), 1)
        return counts

    def padded(self, slots: int) -> Int64s:
        """A copy of `expert_of_slot` with at least `slots` slots a chip, the further ones EMPTY."""
        more = max(0, slots - self.slots)
        return np.pad(self.expert_of_slot, ((0, 0), (0, 0), (0, more)), constant_values=EMPTY)

    def without(self, chips: list[int]) -> "ExpertPlacement":
        """The same with every slot of `chips` EMPTY."""
        slots = self.expert_of_slot.copy()
        slots[:, chips] = EMPTY
        return ExpertPlacement(experts=self.experts, ep=self.ep, expert_of_slot=slots)

    def missing(self) -> list[tuple[int, int, int]]:
        """(group, layer, expert) without a slot in the group."""
        return [(int(g), int(y), int(e)) for g, y, e in np.argwhere(self.copies() == 0)]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertTransfer:
    """Transfer of the weights of `expert` in `layer` into a slot of `chip`.

    `source_chip` and `source_slot` hold a copy; -1 is the checkpoint.
    """

    layer: int
    expert: int
    source_chip: int
    source_slot: int
    chip: int
    slot: int
