"""Routes between two chips: straight over their common tier, or around cut links.

Chips of one tray without board lanes use the backplane. Other unconnected pairs take a detour with
the fewest legs; among equals over mates of the sender's tray, else of the receiver's, else over any
chip, spread over those in turn.
"""

from dataclasses import dataclass

import numpy as np

from emulator.arrays import Bools, Float64s, Int64s
from emulator.fabric.link_health import LinkHealth
from emulator.fabric.tiers import Tier, tier_latency_ns, tiers_of, tiers_there, tray_of
from emulator.specs.seating import VACANT
from emulator.specs.system import SystemSpec

UNREACHABLE = np.iinfo(np.int64).max


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Routes:
    """The routes between `nodes` chips.

    `direct`: the tier of directly connected pairs, else SELF. A detour of `legs[sender, receiver]`
    legs starts with the chip `next_node[sender, receiver]`.
    """

    direct: Int64s  # [nodes, nodes]: a Tier
    legs: Int64s  # [nodes, nodes]: 0 to itself, UNREACHABLE where there is no way
    next_node: Int64s  # [nodes, nodes]

    def reachable(self) -> Bools:
        """Chips that can exchange bytes, bool[nodes, nodes]; a chip reaches itself."""
        joined: Bools = self.legs != UNREACHABLE
        return joined

    def latency_ns(self, system: SystemSpec) -> Float64s:
        """DMA starts and hops on the path of the first byte, float64[nodes, nodes].

        Infinite without a path, 0 to itself. Every leg of a detour is a separate transfer: the chip
        on the way receives, then sends.
        """
        tier_ns = np.zeros(len(Tier))
        for tier in tiers_there(system):
            tier_ns[tier] = tier_latency_ns(system, tier)
        leg_ns = tier_ns[self.direct]
        total_ns = np.where(self.legs == 1, leg_ns, 0.0)
        total_ns[~self.reachable()] = np.inf
        sender, receiver = self.detoured()
        for leg_sender, leg_receiver, leg in self.walk(sender, receiver):
            np.add.at(total_ns, (sender[leg], receiver[leg]), leg_ns[leg_sender, leg_receiver])
        return total_ns

    def detoured(self) -> tuple[Int64s, Int64s]:
        """Senders and receivers of the pairs with a detour."""
        sender, receiver = np.nonzero((self.legs > 1) & self.reachable())
        return sender, receiver

    def walk(self, sender: Int64s, receiver: Int64s) -> list[tuple[Int64s, Int64s, Int64s]]:
        """Legs of the routes of pairs int64[pairs]: (senders, receivers, pairs) per leg number."""
        legs = []
        at, pair = sender, np.arange(len(sender))
        while len(pair):
            to = self.next_node[at, receiver[pair]]
            legs.append((at, to, pair))
            going_on = to != receiver[pair]
            at, pair = to[going_on], pair[going_on]
        return legs


def find_routes(system: SystemSpec, physical: Int64s, links: LinkHealth) -> Routes:
    """Routes between the chips `physical` of a system, int64[nodes], or VACANT; others do not
    forward.

    Raises ValueError for cut links between two chips: here, lanes lead to switches.
    """
    if links.cut_links:
        raise ValueError(f"{system.name} has no links of two chips, as {sorted(links.cut_links)}")
    direct = _direct_tiers(system, physical, links)
    legs = _fewest_legs(direct != Tier.SELF)
    nodes = len(physical)
    next_node = np.tile(np.arange(nodes), (nodes, 1))  # of direct pairs: the receiver itself
    tray = tray_of(system, physical)
    detoured = (legs > 1) & (legs != UNREACHABLE)
    for receiver in np.flatnonzero(detoured.any(axis=0)).tolist():
        senders = np.flatnonzero(detoured[:, receiver])
        before = legs[:, receiver] == legs[senders, receiver, None] - 1  # [senders, nodes]
        candidate = before & (legs[senders] == 1)
        mate = np.where(tray == tray[senders, None], 2, 1 * (tray == tray[receiver]))
        near = np.where(candidate, mate, -1)
        best = near == near.max(axis=1, keepdims=True)  # [senders, nodes]
        turn = (senders + receiver) % best.sum(axis=1)
        chosen = best & (best.cumsum(axis=1) == turn[:, None] + 1)
        next_node[senders, receiver] = chosen.argmax(axis=1)
    return Routes(direct=direct, legs=legs, next_node=next_node)


def _direct_tiers(system: SystemSpec, physical: Int64s, links: LinkHealth) -> Int64s:
    """The tier over which each pair talks directly, SELF where none does, int64[nodes, nodes]."""
    there = physical != VACANT
    seated = np.flatnonzero(there)
    tiers = np.zeros((len(physical), len(physical)), dtype=np.int64)
    tiers[np.ix_(seated, seated)] = tiers_of(system, physical[seated])
    up = (links.share[physical] > 0) & there[:, None]  # [nodes, tiers]
    up[:, [tier for tier in Tier if tier not in tiers_there(system)]] = False
    both_up = up[:, None, :] & up  # [nodes, nodes, tiers]
    by_backplane = (tiers == Tier.TRAY) & ~both_up[:, :, Tier.TRAY]
    tiers[by_backplane] = Tier.BACKPLANE
    usable = np.take_along_axis(both_up, tiers[:, :, None], axis=2)[:, :, 0]
    tiers[~usable] = Tier.SELF
    return tiers


def _fewest_legs(joined: Bools) -> Int64s:
    """Legs of each pair's shortest route along `joined`, int64[nodes, nodes]."""
    legs = np.where(joined, 1, UNREACHABLE)
    np.fill_diagonal(legs, 0)
    reached = legs != UNREACHABLE
    if reached.all():  # a whole fabric: nothing is gone around
        return legs
    step = joined.astype(np.float32)  # counts of ways stay far below what float32 holds exactly
    for count in range(2, len(joined)):
        further = (reached.astype(np.float32) @ step > 0) & ~reached
        if not further.any():
            break
        legs[further] = count
        reached |= further
    return legs
