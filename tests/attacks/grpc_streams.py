"""gRPC streams that are endless, too many, or too large, on both gRPC ports."""

import asyncio
from functools import partial

from tests.attacks.attack import Attack, Budget
from tests.attacks.attacker import Attacker
from tests.attacks.http2 import (
    CANCEL,
    CONTROL_STATE,
    DATA,
    GENERATE,
    HEALTH_CHECK,
    HEALTH_WATCH,
    RST_STREAM,
    Http2Wire,
    frame,
    http2,
    message,
    settings,
)

UNFINISHED = Budget(connections=1, sent_bytes=1_400_000_000, bytes_per_s=250_000_000, wall_s=7.0)
FAST = Budget(connections=40, sent_bytes=20_000_000, bytes_per_s=5_000_000)


def port_of(attacker: Attacker, *, control: bool) -> int:
    return attacker.target.control_port if control else attacker.target.grpc_port


async def unfinished(
    attacker: Attacker,
    *,
    path: str = HEALTH_CHECK,
    count: int = 90,
    size: int = 15_000_000,
    control: bool = False,
    key: bool = False,
) -> None:
    """Streams with a message of 15 MB each, one byte short."""
    wire = await http2(attacker, port=port_of(attacker, control=control))
    begun = b"\0" + size.to_bytes(4, "big") + b"x" * (size - 1)
    shown = attacker.target.key if key else ""
    flows = []
    for _ in range(count):
        await wire.send(wire.call(path, key=shown))
        flows.append(asyncio.create_task(wire.flow(begun)))
        await asyncio.sleep(0)  # lets the flow see which stream is its own
    await asyncio.gather(*flows)
    await wire.rest(attacker.budget.wall_s)


async def many_unfinished(attacker: Attacker, *, control: bool = False) -> None:
    """The same on each of 60 connections: 1 MB of a 15 MB message."""
    begun = b"\0" + (15_000_000).to_bytes(4, "big") + b"x" * 1_000_000

    async def one() -> None:
        wire = await http2(attacker, port=port_of(attacker, control=control))
        for _ in range(8):
            await wire.send(wire.call(HEALTH_CHECK))
            await wire.flow(begun)
        await wire.rest(attacker.budget.wall_s)

    await attacker.crowd(60, one)


async def never_ended(attacker: Attacker, *, path: str, control: bool = False) -> None:
    """Calls that begin and send nothing, as many as the budget allows."""

    async def one() -> None:
        wire = await http2(attacker, port=port_of(attacker, control=control))
        while not wire.wire.reader.at_eof():
            await wire.send(b"".join(wire.call(path) for _ in range(100)))
            await asyncio.sleep(0.01)  # lets the answers be read
        wire.close()

    await attacker.again(one)


async def watched(attacker: Attacker) -> None:
    """Watch calls, whose answers stream for ever."""

    async def one() -> None:
        wire = await http2(attacker)
        while not wire.wire.reader.at_eof() and wire.stream < 10_000:
            calls = (wire.call(HEALTH_WATCH) + wire.data(message(), end=True) for _ in range(50))
            await wire.send(b"".join(calls))
            await asyncio.sleep(0.02)  # lets the answers be read
        await wire.rest(attacker.budget.wall_s)
        wire.close()

    await attacker.again(one)


async def rapid_reset(attacker: Attacker, *, control: bool = False) -> None:
    """Calls reset at once."""
    cancel = CANCEL.to_bytes(4, "big")

    def one_call(wire: Http2Wire) -> bytes:
        call = wire.call(HEALTH_CHECK)
        return call + frame(RST_STREAM, 0, wire.stream, cancel)

    async def one() -> None:
        wire = await http2(attacker, port=port_of(attacker, control=control))
        while not wire.wire.reader.at_eof():
            await wire.send(b"".join(one_call(wire) for _ in range(100)))
            await asyncio.sleep(0)
        wire.close()

    await attacker.again(one)


async def metadata_flood(attacker: Attacker, *, control: bool = False) -> None:
    """Endless calls with 7 kB of metadata."""
    extra = [(f"x-{number}", "a" * 700) for number in range(10)]

    async def one() -> None:
        wire = await http2(attacker, port=port_of(attacker, control=control))
        while not wire.wire.reader.at_eof():
            await wire.send(wire.call(HEALTH_CHECK, *extra))
            await asyncio.sleep(0)
        wire.close()

    await attacker.again(one)


async def wrong_keys(attacker: Attacker, *, path: str, control: bool = False) -> None:
    """Calls, each with a new wrong key."""

    async def one() -> None:
        wire = await http2(attacker, port=port_of(attacker, control=control))
        while not wire.wire.reader.at_eof():
            key = f"us-{attacker.random.getrandbits(256):064x}"
            await wire.send(wire.call(path, key=key) + wire.data(message(), end=True))
            await asyncio.sleep(0.005)
        wire.close()

    await attacker.again(one)


async def oversized(attacker: Attacker, *, path: str = HEALTH_CHECK, key: bool = False) -> None:
    """Messages with a declared length of 4 GB, of which 64 MB follow."""
    begun = b"\0" + b"\xff" * 4 + b"x" * 64_000_000
    shown = attacker.target.key if key else ""

    async def one() -> None:
        wire = await http2(attacker)
        await wire.send(wire.call(path, key=shown))
        await wire.flow(begun)
        await wire.rest(2.0)
        wire.close()

    await attacker.again(one)


async def zero_window(attacker: Attacker) -> None:
    """Calls whose answers cannot be sent: a window of zero, and no reader."""
    refused = settings(initial_window_size=0)

    async def one() -> None:
        wire = await http2(attacker, reads=False, first=refused)
        while wire.stream < 20_000:
            call = wire.call(HEALTH_CHECK) + wire.data(message(), end=True)
            await wire.send(call)
            await asyncio.sleep(0)
        await asyncio.sleep(attacker.budget.wall_s)

    await attacker.crowd(4, one)


async def small_frames(attacker: Attacker) -> None:
    """Empty and one-byte DATA frames without end."""

    async def one() -> None:
        wire = await http2(attacker)
        await wire.send(wire.call(HEALTH_CHECK) + wire.data(b"\0" + (4_000).to_bytes(4, "big")))
        while not wire.wire.reader.at_eof():
            await wire.send(frame(DATA, 0, wire.stream) * 2000 + frame(DATA, 0, wire.stream, b"x"))
            await asyncio.sleep(0)
        wire.close()

    await attacker.again(one)


ATTACKS = (
    Attack(
        name="grpc-unfinished",
        what="90 streams of 15 MB to Health/Check, the last byte withheld",
        run=unfinished,
        budget=UNFINISHED,
        cheap=True,
    ),
    Attack(
        name="grpc-many-unfinished",
        what="60 connections with 8 streams of a MB each, unfinished",
        run=many_unfinished,
        budget=Budget(connections=60, sent_bytes=500_000_000, bytes_per_s=150_000_000, wall_s=8.0),
    ),
    Attack(
        name="grpc-unfinished-generate",
        what="90 streams of 15 MB to Generate without a key, the last byte withheld",
        run=partial(unfinished, path=GENERATE),
        budget=UNFINISHED,
    ),
    Attack(
        name="grpc-keyed-unfinished",
        what="30 streams of 15 MB to Generate with a key, the last byte withheld",
        run=partial(unfinished, path=GENERATE, key=True, count=30),
        needs_key=True,
        budget=UNFINISHED,
    ),
    Attack(
        name="grpc-never-ended",
        what="calls of Health/Check that begin and say nothing more",
        run=partial(never_ended, path=HEALTH_CHECK),
        budget=FAST,
        cheap=True,
    ),
    Attack(
        name="grpc-watches",
        what="calls of Health/Watch, as many as there can be",
        run=watched,
        budget=FAST,
    ),
    Attack(
        name="grpc-rapid-reset",
        what="calls that are taken back at once",
        run=rapid_reset,
        budget=Budget(connections=40, sent_bytes=20_000_000, bytes_per_s=1_500_000),
        cheap=True,
    ),
    Attack(
        name="grpc-metadata-flood",
        what="calls with 7 kB of metadata that do not end",
        run=metadata_flood,
        budget=Budget(connections=40, bytes_per_s=10_000_000),
        cheap=True,
    ),
    Attack(
        name="grpc-wrong-keys",
        what="calls of Generate with a new wrong key each",
        run=partial(wrong_keys, path=GENERATE),
        budget=FAST,
    ),
    Attack(
        name="grpc-oversized",
        what="messages that say they have 4 GB, and 64 MB of each",
        run=oversized,
        budget=Budget(connections=40, sent_bytes=400_000_000, bytes_per_s=60_000_000),
        cheap=True,
    ),
    Attack(
        name="grpc-zero-window",
        what="calls whose answers cannot be sent, and nobody who reads",
        run=zero_window,
        budget=Budget(connections=4, sent_bytes=20_000_000, bytes_per_s=2_000_000),
    ),
    Attack(
        name="grpc-small-frames",
        what="DATA of nothing without end",
        run=small_frames,
        budget=Budget(connections=40, sent_bytes=20_000_000, bytes_per_s=4_000_000),
    ),
    Attack(
        name="control-unfinished",
        what="90 streams of 15 MB to the control port without its key",
        run=partial(unfinished, path=CONTROL_STATE, control=True),
        budget=UNFINISHED,
    ),
    Attack(
        name="control-rapid-reset",
        what="calls to the control port that are taken back at once",
        run=partial(rapid_reset, control=True),
        budget=Budget(connections=40, sent_bytes=20_000_000, bytes_per_s=1_500_000),
        cheap=True,
    ),
    Attack(
        name="control-wrong-keys",
        what="calls of the control service with a new wrong key each",
        run=partial(wrong_keys, path=CONTROL_STATE, control=True),
        budget=FAST,
    ),
    Attack(
        name="control-metadata-flood",
        what="calls of the control port with 7 kB of metadata that do not end",
        run=partial(metadata_flood, control=True),
        budget=Budget(connections=40, bytes_per_s=10_000_000),
    ),
)
