"""Builds the graph of a system: wires, widths, and hops.

Switched: a tray's chips meet at the tray's switch; a chip's backplane lanes, and the traffic over
them, are spread evenly over its rack's switch trays (the vendor speaks of hash spraying); chips of
one position in two racks have a direct link; network cards meet in a network. Assumed: switches do
not block (the vendor says full bisection), and their inside, such as a backplane's further stages,
adds hops and no bandwidth limit. Mesh: a link for every two chips of a tray. Torus: a link to both
neighbours per dimension, of which a chip's tier is the sum.

A hop's latency is spent on the links into a switch, and on direct links.

In a torus a unit's chips fill the first dimension first; the first dimensions lie inside a tray.
"""

from dataclasses import dataclass
from itertools import permutations

import numpy as np

from emulator.arrays import Float64s, Int64s
from emulator.errors import ConfigError
from emulator.fabric.graph import FabricGraph, GraphDraft, NodeKind
from emulator.fabric.link_health import TIER_OF_LINK, LinkHealth
from emulator.fabric.tiers import Tier, rack_of, tier_hops, tiers_there, tray_of
from emulator.specs.link_lanes import LANES_BY_CHIP
from emulator.specs.system import SystemSpec, Topology


def places(system: SystemSpec) -> Int64s:
    """The place of each chip of a unit, int64[chips of a unit, dimensions]."""
    chips = system.chips.count // system.units
    place: Int64s = np.stack(np.unravel_index(np.arange(chips), system.torus, order="F"), axis=1)
    return place


def tray_dimensions(system: SystemSpec) -> int:
    """Number of dimensions, the first ones, inside a tray; ConfigError when they are not whole."""
    inside: list[int] = np.cumprod(system.torus).tolist()
    chips = system.chips_per_tray.count
    if chips not in inside:
        raise ConfigError(
            f"{system.name}.torus",
            system.torus,
            f"first dimensions that make the {chips} chips of a tray",
        )
    return inside.index(chips) + 1


def neighbours(system: SystemSpec, dimension: int) -> Int64s:
    """Each chip's neighbours in a dimension, up and down: int64[chips of a unit, 2].

    In a dimension of 2 they are the same chip, over two links; in one of 1 the chip itself.
    """
    place = places(system)
    size = system.torus[dimension]
    both = np.repeat(place[:, None], 2, axis=1)  # [chips, 2, dimensions]
    both[:, 0, dimension] = (place[:, dimension] + 1) % size
    both[:, 1, dimension] = (place[:, dimension] - 1) % size
    found: Int64s = np.ravel_multi_index(tuple(np.moveaxis(both, 2, 0)), system.torus, order="F")
    return found


def links_in(system: SystemSpec, dimensions: range) -> int:
    """Links of a chip in some of the dimensions, one for each direction."""
    return 2 * sum(system.torus[dimension] > 1 for dimension in dimensions)


def fabric_graph(system: SystemSpec, links: LinkHealth | None = None) -> FabricGraph:
    """The graph of all chips of `system` with the links left by `links`; whole by default.

    Raises ConfigError for a torus whose trays are not whole dimensions.
    """
    links = links or LinkHealth.whole(system)
    draft = GraphDraft(system.chips.count)
    match system.topology:
        case Topology.SWITCHED:
            _add_trays(draft, system, links)
            _add_backplanes(draft, system, links)
            _add_rack_links(draft, system, links)
        case Topology.MESH:
            _add_mesh(draft, system, links)
        case Topology.TORUS:
            _add_torus(draft, system, links)
    _add_network(draft, system, links)
    return draft.frozen()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Star:
    """Links of chips to a node and back; `in_ns` is the whole way through the node."""

    tier: Tier
    in_ns: float
    lanes: float

    def add(self, draft: GraphDraft, chips: Int64s, node: int, rate: Float64s) -> None:
        for ends, latency_ns in (((chips, node), self.in_ns), ((node, chips), 0.0)):
            draft.add_links(
                *ends, bytes_per_s=rate, latency_ns=latency_ns, tier=self.tier, lanes=self.lanes
            )


def _add_trays(draft: GraphDraft, system: SystemSpec, links: LinkHealth) -> None:
    chips = np.arange(system.chips.count)
    rate = links.bytes_per_s(system, Tier.TRAY)
    in_ns = tier_hops(system, Tier.TRAY) * system.hop_ns.value
    star = _Star(tier=Tier.TRAY, in_ns=in_ns, lanes=_lanes(system, Tier.TRAY))
    tray = tray_of(system, chips)
    for number in range(int(tray[-1]) + 1):
        node = draft.add_node(f"tray switch {number}", NodeKind.SWITCH)
        own = chips[tray == number]
        star.add(draft, own, node, rate[own])


def _add_backplanes(draft: GraphDraft, system: SystemSpec, links: LinkHealth) -> None:
    """A switch for every working switch tray, and each chip's lanes spread over those."""
    if Tier.BACKPLANE not in tiers_there(system) or system.trays_per_rack.count == 1:
        return
    chips = np.arange(system.chips.count)
    rate = links.bytes_per_s(system, Tier.BACKPLANE)
    in_ns = tier_hops(system, Tier.BACKPLANE) * system.hop_ns.value
    rack = rack_of(system, chips)
    trays = max(system.switch_trays_per_rack.count, 1)
    star = _Star(tier=Tier.BACKPLANE, in_ns=in_ns, lanes=_lanes(system, Tier.BACKPLANE) / trays)
    for number in range(int(rack[-1]) + 1):
        out = int(links.switch_trays_out[number]) if number < len(links.switch_trays_out) else 0
        own = chips[rack == number]
        for tray in range(out, trays):
            node = draft.add_node(f"rack {number} switch tray {tray}", NodeKind.SWITCH)
            star.add(draft, own, node, rate[own] / (trays - out))


def _add_rack_links(draft: GraphDraft, system: SystemSpec, links: LinkHealth) -> None:
    racks = system.racks.count
    if racks == 1 or Tier.CROSS_RACK not in tiers_there(system):
        return
    rate = links.bytes_per_s(system, Tier.CROSS_RACK) / (racks - 1)
    hops = tier_hops(system, Tier.CROSS_RACK) - tier_hops(system, Tier.BACKPLANE)
    chips = np.arange(system.chips.count).reshape(system.units, racks, system.chips_per_rack)
    for one, other in permutations(range(racks), 2):
        ends = chips[:, one].ravel(), chips[:, other].ravel()
        _direct(draft, system, links, ends, rate, Tier.CROSS_RACK, max(hops, 1))


def _add_mesh(draft: GraphDraft, system: SystemSpec, links: LinkHealth) -> None:
    per_tray = system.chips_per_tray.count
    rate = links.bytes_per_s(system, Tier.TRAY) / max(per_tray - 1, 1)
    trays = np.arange(system.chips.count).reshape(-1, per_tray)
    for one, other in permutations(range(per_tray), 2):
        _direct(draft, system, links, (trays[:, one], trays[:, other]), rate, Tier.TRAY, 1)


def _add_torus(draft: GraphDraft, system: SystemSpec, links: LinkHealth) -> None:
    inside = tray_dimensions(system)
    dimensions = len(system.torus)
    first = np.arange(0, system.chips.count, system.chips.count // system.units)
    for dimension, size in enumerate(system.torus):
        if size == 1:
            continue
        own = range(inside) if dimension < inside else range(inside, dimensions)
        tier = Tier.TRAY if dimension < inside else Tier.CROSS_RACK
        rate = links.bytes_per_s(system, tier) / links_in(system, own)
        for way in neighbours(system, dimension).T:
            source = (first[:, None] + np.arange(len(way))).ravel()
            target = (first[:, None] + way).ravel()
            _direct(draft, system, links, (source, target), rate, tier, 1)


def _direct(
    draft: GraphDraft,
    system: SystemSpec,
    links: LinkHealth,
    ends: tuple[Int64s, Int64s],
    rate: Float64s,
    tier: Tier,
    hops: int,
) -> None:
    """Links between chips, as wide as the narrower end, without cut ones."""
    source, target = ends
    cut = links.cut_links | {(b, a) for a, b in links.cut_links}
    left = np.array(
        [pair not in cut for pair in zip(source.tolist(), target.tolist(), strict=True)]
    )
    draft.add_links(
        source,
        target,
        bytes_per_s=np.minimum(rate[source], rate[target]) * left,
        latency_ns=hops * system.hop_ns.value,
        tier=tier,
        lanes=_lanes(system, tier),
    )


def _add_network(draft: GraphDraft, system: SystemSpec, links: LinkHealth) -> None:
    if system.units == 1 or system.scale_out_start_ns is None:
        return
    node = draft.add_node("scale-out network", NodeKind.NETWORK)
    rate = links.bytes_per_s(system, Tier.SCALE_OUT)
    chips = np.arange(system.chips.count)
    # What a whole way over the network takes, without the DMA's start, which every way has.
    in_ns = max(system.scale_out_start_ns.value - system.chip.dma_start_ns.value, 0.0)
    _Star(tier=Tier.SCALE_OUT, in_ns=in_ns, lanes=1).add(draft, chips, node, rate)


def _lanes(system: SystemSpec, tier: Tier) -> int:
    """Lanes of a chip's tier, spare ones included; 1 where their number is unpublished."""
    known = LANES_BY_CHIP.get(system.chip.name, {})
    links = [link for link, same in TIER_OF_LINK.items() if same is tier and link in known]
    return known[links[0]].lanes.count if links else 1
