"""Memory that was freed in pieces goes back to the system, and only when there is some."""

import asyncio
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import pytest

from serving.server.gateway.memory_return import GROWN_BYTES, MemoryReturn, resident_bytes

PIECES = 4_000
PIECE_BYTES = 30_000


def pieces_between() -> tuple[list[bytearray], list[bytearray]]:
    """Pieces, and malloc's own between them, which are in the way of a heap's end."""
    both = [(bytearray(PIECE_BYTES), bytearray(600)) for _ in range(PIECES)]
    return [piece for piece, _ in both], [between for _, between in both]


def freed_and_after(held_s: float) -> tuple[int, int]:
    """Resident bytes when pieces were freed between others, after a time, and half a second
    later.
    """
    memory = MemoryReturn(look_every_s=0.05)

    async def live() -> tuple[int, int]:
        await memory.start()
        pieces, between = pieces_between()
        await asyncio.sleep(held_s)
        pieces.clear()
        freed_bytes = resident_bytes()
        await asyncio.sleep(0.5)
        await memory.stop()
        await memory.stop()
        assert len(between) == PIECES
        return freed_bytes, resident_bytes()

    return asyncio.run(live())


def freed_after_a_body_and_then() -> tuple[int, int]:
    """As above, of pieces that come and go after a look that saw a body, and then another look."""
    memory = MemoryReturn(look_every_s=60.0)

    async def live() -> tuple[int, int]:
        await memory.start()
        body = bytearray(2 * PIECES * PIECE_BYTES)
        body[::4_096] = b"x" * len(body[::4_096])
        memory.look()
        del body
        pieces, between = pieces_between()
        pieces.clear()
        freed_bytes = resident_bytes()
        memory.look()
        await memory.stop()
        assert len(between) == PIECES
        return freed_bytes, resident_bytes()

    return asyncio.run(live())


@pytest.mark.process
@pytest.mark.parametrize("held_s", [0.0, 0.2], ids=["between two looks", "after a look"])
def test_what_was_freed_between_other_things_is_given_back(held_s: float) -> None:
    # A process of its own: one that ran other tests has room of theirs for the pieces.
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as process:
        freed_bytes, after_bytes = process.submit(freed_and_after, held_s).result()
    assert after_bytes < freed_bytes - PIECES * PIECE_BYTES / 2


@pytest.mark.process
def test_a_body_that_was_seen_does_not_hide_what_is_free_after_it() -> None:
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as process:
        freed_bytes, after_bytes = process.submit(freed_after_a_body_and_then).result()
    assert after_bytes < freed_bytes - PIECES * PIECE_BYTES / 2


def test_a_process_that_needs_what_it_has_is_asked_once_each_time_that_it_grows() -> None:
    resident, trims = [100 * GROWN_BYTES], [0]

    def trim() -> None:
        trims[0] += 1

    memory = MemoryReturn(
        look_every_s=60.0, resident=lambda: resident[0], used=lambda: 0, trim=trim
    )

    async def live() -> None:
        await memory.start()
        for grown_bytes, expected in (
            (GROWN_BYTES - 1, 0),
            (1, 1),
            (0, 1),
            (-2 * GROWN_BYTES, 1),
            (GROWN_BYTES, 2),
        ):
            resident[0] += grown_bytes
            memory.look()
            assert trims[0] == expected
        await memory.stop()

    asyncio.run(live())


def test_what_is_freed_after_a_look_is_asked_for_once() -> None:
    used, trims = [100 * GROWN_BYTES], [0]

    def trim() -> None:
        trims[0] += 1

    memory = MemoryReturn(look_every_s=60.0, resident=lambda: 0, used=lambda: used[0], trim=trim)

    async def live() -> None:
        await memory.start()
        for more_bytes, expected in (
            (GROWN_BYTES, 0),
            (1 - GROWN_BYTES, 0),
            (-1, 1),
            (0, 1),
            (-GROWN_BYTES, 2),
        ):
            used[0] += more_bytes
            memory.look()
            assert trims[0] == expected
        await memory.stop()

    asyncio.run(live())
