"""Attacks on the console's port without the key: its page, sessions and JSON calls."""

import asyncio
import contextlib
import json
from functools import partial

from tests.attacks.attack import Attack, Budget
from tests.attacks.attacker import Attacker
from tests.attacks.heads import LINE, START, endless, pipelined, silent, slow_headers
from tests.attacks.http1 import head
from tests.attacks.target import HOST


def _head(attacker: Attacker, method: str, path: str, *lines: str) -> bytes:
    name = f"{HOST}:{attacker.target.console_port}"
    return head(method, path, *lines).replace(b"host: a", f"host: {name}".encode(), 1)


async def sign_ins(attacker: Attacker) -> None:
    """Sessions, each with a new wrong key."""

    async def one() -> None:
        wire = await attacker.connect(attacker.target.console_port)
        for _ in range(50):
            body = json.dumps({"key": f"us-{attacker.random.getrandbits(256):064x}"}).encode()
            kind = "content-type: application/json"
            size = f"content-length: {len(body)}"
            await wire.send(_head(attacker, "POST", "/session", kind, size) + body)
            if await wire.answer() is None:
                break
        wire.close()

    async def many() -> None:
        await attacker.again(one)

    await attacker.crowd(4, many)


async def bodies(attacker: Attacker) -> None:
    """Large bodies to every path that takes one, without the last byte."""
    paths = ("/session", "/ultraserve.v1.ControlService/GetState", "/", "/nowhere")
    body = b"x" * (2**24 - 1)

    async def one() -> None:
        wire = await attacker.connect(attacker.target.console_port)
        path = attacker.random.choice(paths)
        with contextlib.suppress(OSError):  # an answer may lie there
            await wire.send(_head(attacker, "POST", path, f"content-length: {2**24}"))
            await wire.send(body)
        await wire.answer(wait_s=3.0)

    await attacker.crowd(40, one)


async def event_streams(attacker: Attacker) -> None:
    """Event streams without a key, never read."""

    async def one() -> None:
        wire = await attacker.connect(attacker.target.console_port, receive_buffer_bytes=4096)
        await wire.send(_head(attacker, "GET", "/stream"))
        await wire.answer(wait_s=1.0)
        await asyncio.sleep(attacker.budget.wall_s)

    await attacker.crowd(150, one)


CROWD = Budget(connections=250, sent_bytes=4_000_000)

ATTACKS = (
    Attack(
        name="console-header-lines",
        what="80 MB of short header lines to the console",
        run=partial(endless, first=START, piece=LINE, port="console_port"),
        budget=Budget(connections=60),
        cheap=True,
    ),
    Attack(
        name="control-header-lines",
        what="80 MB of short header lines to the control port",
        run=partial(endless, first=START, piece=LINE, port="control_port"),
        budget=Budget(connections=60),
        cheap=True,
    ),
    Attack(
        name="console-slow-heads",
        what="250 heads to the console, a byte each half second",
        run=partial(slow_headers, port="console_port"),
        budget=CROWD,
    ),
    Attack(
        name="console-silent",
        what="250 connections to the console that say nothing",
        run=partial(silent, port="console_port"),
        budget=CROWD,
    ),
    Attack(
        name="control-silent",
        what="250 connections to the control port that say nothing",
        run=partial(silent, port="control_port"),
        budget=CROWD,
    ),
    Attack(
        name="console-sign-ins",
        what="sessions of the console begun with wrong keys",
        run=sign_ins,
        budget=CROWD,
    ),
    Attack(
        name="console-bodies",
        what="40 bodies of 16 MB to the console, the last byte withheld",
        run=bodies,
        budget=Budget(connections=40, sent_bytes=700_000_000, bytes_per_s=200_000_000),
    ),
    Attack(
        name="console-pages-unread",
        what="the console's page asked for without end, and never read",
        run=partial(pipelined, request=head("GET", "/"), port="console_port"),
        budget=Budget(connections=60, sent_bytes=20_000_000, bytes_per_s=2_000_000),
    ),
    Attack(
        name="console-streams",
        what="150 streams of events without a key",
        run=event_streams,
        budget=CROWD,
    ),
)
