"""Request bodies: large, withheld, endless, slow, or of false length."""

import asyncio
import contextlib
import gzip
from functools import partial

from tests.attacks.attack import Attack, Budget
from tests.attacks.attacker import Attacker
from tests.attacks.http1 import BODY_BYTES, COMPLETIONS, ask, head, post

WITHHELD = Budget(connections=68, sent_bytes=1_200_000_000, bytes_per_s=200_000_000, wall_s=8.0)
CHUNKED = "transfer-encoding: chunked"


async def withheld(attacker: Attacker, *, method: str, path: str, size: int = BODY_BYTES) -> None:
    """68 bodies of 16 MB without their last byte."""
    request = head(method, path, f"content-length: {size}")
    body = b"x" * (size - 1)

    async def one() -> None:
        wire = await attacker.connect(attacker.target.http_port)
        with contextlib.suppress(OSError):  # an answer may lie there
            await wire.send(request)
            await wire.send(body)
        await wire.answer(wait_s=attacker.budget.wall_s, is_probe=path == "/ping")

    await attacker.crowd(68, one)


async def chunks(attacker: Attacker, *, path: str, piece: bytes, first: bytes = b"") -> None:
    """Chunks without end."""

    async def one() -> None:
        wire = await attacker.connect(attacker.target.http_port)
        try:
            await wire.send(head("POST", path, CHUNKED) + first)
            while not wire.reader.at_eof():
                await wire.send(piece)
                await asyncio.sleep(0)
            await wire.answer(is_probe=path == "/ping")
        finally:
            wire.close()

    await attacker.again(one)


async def slow_bodies(attacker: Attacker, *, path: str, key: bool, count: int = 200) -> None:
    """A byte of a body every half second, on many connections."""
    request = head("POST", path, "content-length: 1000", key=attacker.target.key if key else "")

    async def one() -> None:
        wire = await attacker.connect(attacker.target.http_port)
        await wire.send(request)
        while not wire.reader.at_eof():
            await wire.send(b"x")
            await asyncio.sleep(0.5)
        await wire.answer(is_probe=path == "/ping")

    await attacker.crowd(count, one)


async def continue_withheld(attacker: Attacker) -> None:
    """`Expect: 100-continue` without a body."""
    request = head("POST", "/ping", f"content-length: {BODY_BYTES}", "expect: 100-continue")

    async def one() -> None:
        wire = await attacker.connect(attacker.target.http_port)
        await wire.send(request)
        await wire.answer(wait_s=attacker.budget.wall_s, is_probe=True)
        await wire.reader.read()

    await attacker.crowd(250, one)


async def gzip_bombs(attacker: Attacker) -> None:
    """With a key, 200 kB that decompress to 200 MB."""
    bomb = gzip.compress(b" " * 200_000_000, compresslevel=9)
    request = post(attacker.target, COMPLETIONS, bomb, "content-encoding: gzip")

    async def one() -> None:
        await ask(attacker, request)

    await attacker.again(one, pause_s=0.2)


async def keyed_withheld(attacker: Attacker) -> None:
    """With a key, bodies of 16 MB without their last byte."""
    request = head("POST", COMPLETIONS, f"content-length: {BODY_BYTES}", key=attacker.target.key)
    body = b" " * (BODY_BYTES - 1)

    async def one() -> None:
        wire = await attacker.connect(attacker.target.http_port)
        with contextlib.suppress(OSError):  # an answer may lie there
            await wire.send(request)
            await wire.send(body)
        await wire.answer(wait_s=attacker.budget.wall_s)

    await attacker.crowd(40, one)


ATTACKS = (
    Attack(
        name="ping-bodies",
        what="68 bodies of 16 MB to POST /ping, the last byte withheld",
        run=partial(withheld, method="POST", path="/ping"),
        budget=WITHHELD,
        cheap=True,
    ),
    Attack(
        name="options-bodies",
        what="68 bodies of 16 MB to OPTIONS, the last byte withheld",
        run=partial(withheld, method="OPTIONS", path="/v1/completions"),
        budget=WITHHELD,
        cheap=True,
    ),
    Attack(
        name="keyless-bodies",
        what="68 bodies of 16 MB to POST /v1/completions without a key, the last byte withheld",
        run=partial(withheld, method="POST", path=COMPLETIONS),
        budget=WITHHELD,
    ),
    Attack(
        name="endless-chunks",
        what="chunks of a byte without end to an open path",
        run=partial(chunks, path="/ping", piece=b"1\r\nx\r\n" * 4000),
        budget=Budget(connections=60, sent_bytes=40_000_000, bytes_per_s=10_000_000),
        cheap=True,
    ),
    Attack(
        name="endless-chunks-refused",
        what="chunks without end behind a request that has no key",
        run=partial(chunks, path=COMPLETIONS, piece=b"10000\r\n" + b"x" * 65536 + b"\r\n"),
        budget=Budget(connections=60),
    ),
    Attack(
        name="chunk-extensions",
        what="a chunk's extension that does not end",
        run=partial(chunks, path="/ping", first=b"1;", piece=b"a" * 60_000),
        budget=Budget(connections=60),
        cheap=True,
    ),
    Attack(
        name="endless-trailers",
        what="trailers without end behind a body of nothing",
        run=partial(chunks, path="/ping", first=b"0\r\n", piece=b"a: b\r\n" * 5000),
        budget=Budget(connections=60),
    ),
    Attack(
        name="slow-bodies",
        what="200 bodies to an open path, a byte each half second",
        run=partial(slow_bodies, path="/ping", key=False),
        budget=Budget(connections=200),
    ),
    Attack(
        name="continue-withheld",
        what="250 requests that expect 100-continue, and send no body",
        run=continue_withheld,
        budget=Budget(connections=250),
    ),
    Attack(
        name="keyed-slow-bodies",
        what="100 bodies with a key, a byte each half second",
        run=partial(slow_bodies, path=COMPLETIONS, key=True, count=100),
        needs_key=True,
        budget=Budget(connections=100),
    ),
    Attack(
        name="keyed-withheld-bodies",
        what="40 bodies of 16 MB with a key, the last byte withheld",
        run=keyed_withheld,
        needs_key=True,
        budget=Budget(connections=40, sent_bytes=700_000_000, bytes_per_s=200_000_000, wall_s=8.0),
    ),
    Attack(
        name="gzip-bombs",
        what="bodies of 200 kB that say they are 200 MB, packed",
        run=gzip_bombs,
        needs_key=True,
        budget=Budget(connections=60),
    ),
)
