"""Times the exchange of rows between chips, compiled.

Over the lanes of tiers, as in `TierPaths`, or over links that forward by themselves, as in
`GraphPaths`.
"""

from typing import NamedTuple

from emulator.arrays import Bools, Float64s, Int64s
from emulator.compiled import compiled


class ExchangeTables(NamedTuple):
    """Rows between chips over the lanes of tiers or over `links`; none where `carried` is False.

    A receiver's senders over a tier are one of the `sets`, of which it may itself be one.
    """

    carried: bool
    received_bytes: Float64s  # [kinds, receivers]: of a token of its group
    sent_bytes: Float64s  # [kinds, tiers, senders]: of one of its tokens
    stuck: Bools  # [senders]: no links lead to one that needs its tokens
    left_bytes: Float64s  # [kinds, senders]: of one of its tokens, to all others
    set_of: Int64s  # [tiers, receivers]
    itself: Float64s  # [tiers, receivers]: 1 where the set has the receiver too, else 0
    members: Int64s  # [members of all sets], set after set
    first_member: Int64s  # [sets + 1]
    ns_per_byte: Float64s  # [tiers, chips and relays]
    latency_ns: float
    legs: Int64s  # [legs of detours, (sender, receiver, tier, leg's sender, leg's receiver)]
    links: Float64s  # [kinds, senders, links]: ns of a link for one of a sender's tokens
    ends: Int64s  # [links, 2]: chips at its ends, -1 for one that only forwards


class ExchangeRoom(NamedTuple):
    """What exchanges come to, as in `ExpertCounts`, and room to find it."""

    link_ns: Float64s  # [kinds, chips]
    rest_ns: Float64s  # [kinds]
    link_bytes: Float64s  # [kinds, chips]
    collectives: Float64s  # [kinds]
    by_chip: Float64s  # [chips]: tokens
    arriving: Float64s  # [tiers, chips]
    of_set: Float64s  # [sets]
    egress: Float64s  # [tiers, chips and relays]
    ingress: Float64s  # [tiers, chips and relays]
    of_link: Float64s  # [links]: ns


@compiled
def exchange_rows(exchange: ExchangeTables, tokens: Float64s, tp: int, room: ExchangeRoom) -> None:
    """Fill `room` with the exchanges of `tokens` [ranks], each chip's a part of its rank's.

    Raises ConnectionError for a chip without links to one that needs its tokens.
    """
    stuck, by_chip = exchange.stuck, room.by_chip
    for chip in range(len(by_chip)):
        by_chip[chip] = tokens[chip // tp] / tp
        if by_chip[chip] > 0 and stuck[chip]:
            raise ConnectionError
    _arriving_tokens(exchange, room)
    left_bytes, link_ns, link_bytes = exchange.left_bytes, room.link_ns, room.link_bytes
    for kind in range(len(link_ns)):
        longest_ns = max(_over_lanes(exchange, room, kind), _over_links(exchange, room, kind))
        busiest_ns = 0.0
        for chip in range(len(by_chip)):
            busiest_ns = max(busiest_ns, link_ns[kind, chip])
            link_bytes[kind, chip] = by_chip[chip] * left_bytes[kind, chip]
        room.rest_ns[kind] = room.collectives[kind] = 0.0
        if longest_ns > 0:
            room.rest_ns[kind] = longest_ns + exchange.latency_ns - busiest_ns
            room.collectives[kind] = 1.0


@compiled
def _arriving_tokens(exchange: ExchangeTables, room: ExchangeRoom) -> None:
    """Fill the tokens of all that send to each receiver over each tier, [tiers, receivers]."""
    members, first_member = exchange.members, exchange.first_member
    itself, set_of = exchange.itself, exchange.set_of
    by_chip, of_set, arriving = room.by_chip, room.of_set, room.arriving
    for each in range(len(of_set)):
        of_set[each] = 0.0
        for place in range(first_member[each], first_member[each + 1]):
            of_set[each] += by_chip[members[place]]
    for tier in range(len(arriving)):
        for chip in range(len(by_chip)):
            own = itself[tier, chip] * by_chip[chip]
            arriving[tier, chip] = of_set[set_of[tier, chip]] - own


@compiled
def _over_lanes(exchange: ExchangeTables, room: ExchangeRoom, kind: int) -> float:
    """Fill each chip's busiest lanes, `link_ns`; returns those of the busiest chip or relay."""
    sent_bytes, received_bytes = exchange.sent_bytes, exchange.received_bytes
    ns_per_byte, legs = exchange.ns_per_byte, exchange.legs
    by_chip, arriving, egress, ingress = room.by_chip, room.arriving, room.egress, room.ingress
    tiers, nodes = ns_per_byte.shape
    chips = len(by_chip)
    for tier in range(tiers):
        for chip in range(chips):
            egress[tier, chip] = by_chip[chip] * sent_bytes[kind, tier, chip]
            ingress[tier, chip] = arriving[tier, chip] * received_bytes[kind, chip]
        for relay in range(chips, nodes):
            egress[tier, relay] = ingress[tier, relay] = 0.0
    for leg in range(len(legs)):
        moved = by_chip[legs[leg, 0]]
        moved *= received_bytes[kind, legs[leg, 1]]
        tier = legs[leg, 2]
        egress[tier, legs[leg, 3]] += moved
        ingress[tier, legs[leg, 4]] += moved
    longest_ns = 0.0
    for node in range(nodes):
        busy_ns = 0.0
        for tier in range(tiers):
            carried = max(egress[tier, node], ingress[tier, node])
            busy_ns = max(busy_ns, carried * ns_per_byte[tier, node])
        longest_ns = max(longest_ns, busy_ns)
        if node < chips:
            room.link_ns[kind, node] = busy_ns
    return longest_ns


@compiled
def _over_links(exchange: ExchangeTables, room: ExchangeRoom, kind: int) -> float:
    """Raise `link_ns` to the busiest link at each chip; returns the time of the busiest of all."""
    links, ends, by_chip, link_ns = exchange.links, exchange.ends, room.by_chip, room.link_ns
    of_link = room.of_link
    of_link[:] = 0.0
    for sender in range(len(by_chip)):  # links inside: none waits for the sum of another
        tokens = by_chip[sender]
        for link in range(len(of_link)):
            of_link[link] += tokens * links[kind, sender, link]
    longest_ns = 0.0
    for link in range(len(of_link)):
        longest_ns = max(longest_ns, of_link[link])
        for end in range(2):
            chip = ends[link, end]
            if chip >= 0:
                link_ns[kind, chip] = max(link_ns[kind, chip], of_link[link])
    return longest_ns
