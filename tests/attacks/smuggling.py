"""Heads that two parsers read differently: each is refused, or one request alone.

Behind each stands a second request that the framing hides or shows, to a path that needs a key: its
answer, 401, differs from the first one's.
"""

from typing import Final

from tests.attacks.attack import Attack, Budget
from tests.attacks.attacker import Attacker
from tests.attacks.http1 import COMPLETIONS, head

SMUGGLED: Final = head("GET", "/v1/models")
_INSIDE: Final = len(SMUGGLED)


def _post(*lines: str) -> bytes:
    return head("POST", "/ping", *lines)


MUST_BE_ONE: Final[dict[str, bytes]] = {
    "CL and TE": _post(f"content-length: {_INSIDE}", "transfer-encoding: chunked")
    + b"0\r\n\r\n"
    + SMUGGLED,
    "two lengths": _post("content-length: 0", f"content-length: {_INSIDE}") + SMUGGLED,
    "a list of lengths": _post(f"content-length: 0, {_INSIDE}") + SMUGGLED,
    "a length with a sign": _post("content-length: +0") + SMUGGLED,
    "a length in hex": _post("content-length: 0x0") + SMUGGLED,
    "TE with a space before the colon": _post("transfer-encoding : chunked")
    + b"0\r\n\r\n"
    + SMUGGLED,
    "an unknown TE": _post("transfer-encoding: xchunked") + b"0\r\n\r\n" + SMUGGLED,
    "TE twice": _post("transfer-encoding: chunked", "transfer-encoding: identity")
    + b"0\r\n\r\n"
    + SMUGGLED,
    "a folded line": _post("transfer-encoding:", " chunked") + b"0\r\n\r\n" + SMUGGLED,
    "NUL in a value": b"POST /ping HTTP/1.1\r\nhost: a\r\nx: a\0b\r\n\r\n" + SMUGGLED,
    "NUL in a name": b"POST /ping HTTP/1.1\r\nhost: a\r\nx\0y: a\r\n\r\n" + SMUGGLED,
    "a bare CR": b"POST /ping HTTP/1.1\r\nhost: a\r\nx: a\rcontent-length: 0\r\n\r\n" + SMUGGLED,
    "a chunk's size that is too large": _post("transfer-encoding: chunked")
    + b"10000000000000000\r\n"
    + SMUGGLED,
    "a chunk's size with a sign": _post("transfer-encoding: chunked") + b"-1\r\n" + SMUGGLED,
    "a chunk that ends wrongly": _post("transfer-encoding: chunked")
    + b"1\r\nxy0\r\n\r\n"
    + SMUGGLED,
}
"""Malformed, or one request whose connection then ends: no second answer."""


async def smuggled(attacker: Attacker) -> None:
    """Send each; a second answer is a fault."""

    async def one() -> None:
        for name, request in MUST_BE_ONE.items():
            wire = await attacker.connect(attacker.target.http_port)
            await wire.send(request)
            first = await wire.answer(is_probe=True)
            if first is not None and await wire.answer(wait_s=0.3) == 401:
                attacker.answers.fault(f"{name}: the request behind it was answered")
            wire.close()

    await one()


async def mangled(attacker: Attacker) -> None:
    """Heads with some random bytes."""

    async def one() -> None:
        wire = await attacker.connect(attacker.target.http_port)
        request = bytearray(head("POST", COMPLETIONS, "content-length: 2", "accept: */*") + b"{}")
        for _ in range(attacker.random.randint(1, 8)):
            request[attacker.random.randrange(len(request))] = attacker.random.randrange(256)
        await wire.send(bytes(request))
        await wire.answer(wait_s=0.5)
        wire.close()

    await attacker.again(one, pause_s=0.01)


ATTACKS = (
    Attack(
        name="smuggling",
        what="CL with TE, two lengths, folded lines, NUL, bare CR, wrong chunks",
        run=smuggled,
        budget=Budget(connections=40, wall_s=10.0),
        cheap=True,
    ),
    Attack(
        name="mangled-heads",
        what="heads in which some bytes are random",
        run=mangled,
        budget=Budget(connections=500),
    ),
)
