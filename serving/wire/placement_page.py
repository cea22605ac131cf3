"""Which experts lie where, as the control API shows it, in pages of whole layers."""

from typing import Annotated

from msgspec import Meta

from serving.wire.machine_state import Count, Plain

Numbered = Annotated[int, Meta(ge=-1)]
"""A thing by its number; -1 for none."""


class RankPlacement(Plain, frozen=True, kw_only=True):
    """The positions of one rank."""

    rank: Count
    up: bool
    positions: tuple[Count, ...]


class LayerPlacement(Plain, frozen=True, kw_only=True):
    """One layer of the timed model that has experts.

    Attributes:
        expert_of_slot: [positions x slots], those of position 0 first; -1 for an empty slot.
        copies: [experts], how many slots of all positions hold each.
    """

    layer: Count
    expert_of_slot: tuple[Numbered, ...]
    copies: tuple[Count, ...]


class PlacementPage(Plain, frozen=True, kw_only=True):
    """Some layers in their order.

    Attributes:
        layers: that have experts, of which `experts` each; 0 of a dense model.
        positions: of the partition; `slots` of each in each layer.
        ep: experts are spread over groups of so many positions.
        chips: the chip in each position, -1 where none sits.
        next_layer: where the next page begins; `layers` at the end.
    """

    layers: Count
    experts: Count
    positions: Count
    slots: Count
    ep: Count
    chips: tuple[Numbered, ...]
    ranks: tuple[RankPlacement, ...]
    placements: tuple[LayerPlacement, ...]
    next_layer: Count
