"""How long engines wait for each other, and how much they take of each other."""

from dataclasses import dataclass
from typing import Final

UNPROVED_BYTES_MAX: Final = 1 << 14
"""Of the first packet, which says who an engine is."""

PART_BYTES: Final = 1 << 20
"""Of numbers in a packet: what goes in between waits a millisecond."""

PULL_BYTES_MAX: Final = 1 << 12
"""Of what asks for a read, whose name goes with each part."""

PACKET_BYTES_MAX: Final = PART_BYTES + PULL_BYTES_MAX
"""A part with its names."""

WAITS_MAX: Final = 1_000
"""Requests in a heartbeat's packet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KvLimits:
    """Of one engine's exchange, in wall seconds and connections.

    Attributes:
        handshake_wall_s: for two engines to prove the key, all in all.
        stall_wall_s: for a packet to come or go whole, and for a port to wait for numbers that its
            engine is about to read.
        answer_wall_s: of silence, until an engine is given up that owes an answer; longer than
            its port waits itself.
        unproved_max: connections at a port whose other end has yet to prove the key; the oldest
            goes for one more.
        readers_max: engines at a port.
        dials_max: engines that are dialled at once, beside those that have proved the key before:
            a client may name any, and each name takes a thread to be found.
        sources_max: connections that are kept to engines of which nothing is read.
    """

    handshake_wall_s: float = 10.0
    stall_wall_s: float = 10.0
    answer_wall_s: float = 30.0
    unproved_max: int = 16
    readers_max: int = 128
    dials_max: int = 4
    sources_max: int = 128
