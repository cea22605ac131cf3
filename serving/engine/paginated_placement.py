"""Expert placement for the control service: pages of whole layers that fit a message."""

from typing import Final

import numpy as np

from emulator.errors import ConfigError
from emulator.specs.placement import EMPTY
from emulator.ultraserver.machine import Machine
from serving.wire.placement_page import LayerPlacement, PlacementPage, RankPlacement

NUMBERS_PER_PAGE: Final = 65_536
"""Slots and experts of a page, at most 6 bytes each in JSON and 3 on the wire: below half a
megabyte. One layer has fewer: 144 chips of 256 slots and 512 experts."""


def placement_page(machine: Machine, first_layer: int) -> PlacementPage:
    """Layers from `first_layer` on; raises ConfigError for one beyond the last."""
    placement, partition = machine.placement, machine.partition
    if not 0 <= first_layer <= placement.layers:
        expected = f"0 to {placement.layers}"
        raise ConfigError("first_layer", first_layer, expected)
    per_layer = placement.chips * placement.slots + placement.experts
    count = max(1, NUMBERS_PER_PAGE // max(1, per_layer))
    end = min(first_layer + count, placement.layers)
    return PlacementPage(
        layers=placement.layers,
        experts=placement.experts,
        positions=placement.chips,
        slots=placement.slots,
        ep=placement.ep,
        chips=tuple(machine.seating.chip_of_position.tolist()),
        ranks=tuple(
            RankPlacement(rank=rank, up=bool(up), positions=tuple(partition.chips_of_rank(rank)))
            for rank, up in enumerate(machine.ranks_up.tolist())
        ),
        placements=tuple(_layer(machine, layer) for layer in range(first_layer, end)),
        next_layer=end,
    )


def _layer(machine: Machine, layer: int) -> LayerPlacement:
    placement = machine.placement
    slots = placement.expert_of_slot[layer].ravel()  # [positions x slots]
    held = slots[slots != EMPTY]
    return LayerPlacement(
        layer=layer,
        expert_of_slot=tuple(slots.tolist()),
        copies=tuple(np.bincount(held, minlength=placement.experts).tolist()),
    )
