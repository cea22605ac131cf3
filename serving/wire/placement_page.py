"""Expert placement as the control API shows it, in pages of whole layers; see placement.proto."""

from typing import Annotated

from msgspec import Meta

from serving.wire.machine_state import Count, Plain

Numbered = Annotated[int, Meta(ge=-1)]
"""A number of a thing; -1 for none."""


class RankPlacement(Plain, frozen=True, kw_only=True):
    """The positions of one rank."""

    rank: Count
    up: bool
    positions: tuple[Count, ...]


class LayerPlacement(Plain, frozen=True, kw_only=True):
    """One layer of the timed model with experts.

    `expert_of_slot` is [positions x slots], position 0 first; `copies` is [experts].
    """

    layer: Count
    expert_of_slot: tuple[Numbered, ...]
    copies: tuple[Count, ...]


class PlacementPage(Plain, frozen=True, kw_only=True):
    """Some layers in order; a dense model has 0 of them."""

    layers: Count
    experts: Count
    positions: Count
    slots: Count
    ep: Count
    chips: tuple[Numbered, ...]
    ranks: tuple[RankPlacement, ...]
    placements: tuple[LayerPlacement, ...]
    next_layer: Count
