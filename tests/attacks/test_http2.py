import asyncio
from typing import Any

import pytest
from hpack import Encoder

from tests.attacks.answers import Answers
from tests.attacks.attack import Attack, Budget
from tests.attacks.attacker import Attacker, attacked
from tests.attacks.http2 import (
    ACK,
    DATA,
    END_HEADERS,
    HEADERS,
    HEALTH_CHECK,
    INITIAL_WINDOW_SIZE,
    PREFACE,
    RST_STREAM,
    WINDOW_BYTES,
    WINDOW_UPDATE,
    frame,
    http2,
    message,
    settings,
)
from tests.attacks.target import HOST, Target

FRAME_HEAD_BYTES = 9


def test_frames_are_those_of_the_standard() -> None:
    assert frame(RST_STREAM, 0, 5, b"\0\0\0\x08") == bytes.fromhex("000004 03 00 00000005 00000008")
    assert settings() == bytes.fromhex("000000 04 00 00000000")
    assert settings(initial_window_size=0) == bytes.fromhex("000006 04 00 00000000 0004 00000000")
    assert message(b"ab") == b"\0\0\0\0\x02ab"
    assert (INITIAL_WINDOW_SIZE, ACK) == (4, 1)


def data_bytes(seen: bytes) -> int:
    """Payload of the DATA frames behind a preface."""
    assert seen.startswith(PREFACE)
    at, total = len(PREFACE), 0
    while at < len(seen):
        size, kind = int.from_bytes(seen[at : at + 3], "big"), seen[at + 3]
        total += size if kind == DATA else 0
        at += FRAME_HEAD_BYTES + size
    return total


def uploaded(reply: bytes, size: int) -> tuple[bytes, Answers]:
    """What a server that says `reply` sees of an upload on one stream, and what we heard."""
    seen = bytearray()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.extend(await reader.readexactly(len(PREFACE)))
        writer.write(reply)
        while piece := await reader.read(2**16):
            seen.extend(piece)
        writer.close()

    async def upload(attacker: Attacker) -> None:
        wire = await http2(attacker)
        await wire.send(wire.call(HEALTH_CHECK))
        await asyncio.sleep(0.1)  # lets what the server says first be heard
        await wire.flow(bytes(size))

    async def both() -> Answers:
        server = await asyncio.start_server(serve, HOST, 0)
        port = server.sockets[0].getsockname()[1]
        target = Target(
            http_port=port, grpc_port=port, control_port=port, console_port=port, model="m", key="k"
        )
        attack = Attack(name="a", what="", run=upload, budget=Budget(wall_s=0.4))
        answers = await attacked(attack, target, seed=1)
        await asyncio.sleep(0.05)  # lets the server see the end
        server.close()
        return answers

    answers = asyncio.run(both())
    return bytes(seen), answers


@pytest.mark.long
@pytest.mark.parametrize(
    ("reply", "sent"),
    [
        (b"", WINDOW_BYTES),
        (settings(initial_window_size=1_000), 1_000),
        (frame(WINDOW_UPDATE, 0, 1, b"\0\0\x10\0"), WINDOW_BYTES),
        (
            frame(WINDOW_UPDATE, 0, 1, b"\0\0\x10\0") + frame(WINDOW_UPDATE, 0, 0, b"\0\0\x08\0"),
            WINDOW_BYTES + 2_048,
        ),
    ],
)
def test_an_upload_keeps_to_the_windows_that_the_server_gives(reply: bytes, sent: int) -> None:
    seen, _ = uploaded(reply, 200_000)

    assert data_bytes(seen) == sent


@pytest.mark.long
@pytest.mark.parametrize(
    ("fields", "status", "unreasoned"),
    [
        ([("grpc-status", "16"), ("grpc-message", "no key")], "grpc 16", 0),
        ([("grpc-status", "13")], "grpc 13", 1),
    ],
)
def test_the_end_of_a_call_is_counted_and_its_reason_looked_at(
    fields: list[Any], status: str, unreasoned: int
) -> None:
    reply = frame(HEADERS, END_HEADERS, 1, Encoder().encode(fields))
    _, answers = uploaded(settings() + reply, 200_000)

    assert answers.by_status == {status: 1}
    assert len(answers.unreasoned) == unreasoned
