"""Ray's nodes, and which of them each chip lives on."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class RayNode:
    """A node of a Ray cluster at network `address`; `is_here` says that this process is on it."""

    node_id: str
    address: str
    is_here: bool


def spread_chips(chips: int, nodes: Sequence[RayNode], tray_chips: int) -> tuple[RayNode, ...]:
    """Give each of `chips` a node: equal runs of whole trays, so that a tray's chips stay together.

    Where there are fewer trays than nodes, runs of single chips. Runs differ by one tray (or chip)
    at most.
    """
    trays = -(-chips // tray_chips)
    unit_chips = tray_chips if trays >= len(nodes) else 1
    units = -(-chips // unit_chips)
    return tuple(nodes[chip // unit_chips * len(nodes) // units] for chip in range(chips))
