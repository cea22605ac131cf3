"""Bodies within their limits of size, time and memory, from senders of every kind."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.front_door.http.http_errors import HttpRefused
from serving.front_door.http.request_body import BodyReader, ClientGone

SCOPE: dict[str, Any] = {"headers": []}


def sender(
    parts: Iterable[bytes], *, ends: bool = True, pause_s: float = 0.0
) -> Callable[[], Awaitable[dict[str, Any]]]:
    """Sends the parts; then nothing more, if it does not end."""
    left = list(parts)

    async def receive() -> dict[str, Any]:
        await asyncio.sleep(pause_s)
        if not left:
            await asyncio.Event().wait()
        part = left.pop(0)
        return {"type": "http.request", "body": part, "more_body": bool(left) or not ends}

    return receive


def read(reader: BodyReader, receive: Any, scope: dict[str, Any] = SCOPE) -> bytes:
    return asyncio.run(asyncio.wait_for(reader.read(scope, receive), 5.0))


@given(st.lists(st.binary(max_size=8), min_size=1, max_size=8))
def test_a_body_is_what_was_sent_if_it_is_small_enough(parts: list[bytes]) -> None:
    reader, whole = BodyReader(bytes_max=20), b"".join(parts)
    if len(whole) <= 20:
        assert read(reader, sender(parts)) == whole
    else:
        with pytest.raises(HttpRefused) as refused:
            read(reader, sender(parts))
        assert refused.value.error.status == 413
    assert reader.held_bytes == 0


def test_a_body_that_says_it_is_too_large_is_not_read_at_all() -> None:
    async def receive() -> dict[str, Any]:
        raise AssertionError("nobody reads")

    for said in (b"21", b"9" * 4_000):
        with pytest.raises(HttpRefused) as refused:
            read(BodyReader(bytes_max=20), receive, {"headers": [(b"content-length", said)]})
        assert (refused.value.error.status, refused.value.error.closes) == (413, True)


def test_a_sender_that_stops_is_told_so_after_its_time() -> None:
    reader = BodyReader(bytes_max=20, wait_s=0.02)
    for receive in (sender([b"ab"], ends=False), sender([], ends=False)):
        with pytest.raises(HttpRefused) as refused:
            read(reader, receive)
        assert refused.value.error.status == 408
    assert reader.held_bytes == 0


def test_a_trickle_is_told_so_though_something_comes_all_the_time() -> None:
    reader = BodyReader(bytes_max=1_000, wait_s=0.02, bytes_per_s_min=1_000.0)
    with pytest.raises(HttpRefused) as refused:
        read(reader, sender([b"x"] * 500, pause_s=0.005))
    assert refused.value.error.status == 408


def test_a_sender_that_is_slow_and_fast_enough_has_its_time() -> None:
    reader = BodyReader(bytes_max=1_000, wait_s=0.02, bytes_per_s_min=100.0)
    assert len(read(reader, sender([b"x" * 10] * 10, pause_s=0.005))) == 100


def test_a_client_that_goes_while_it_sends_leaves_nothing_behind() -> None:
    reader = BodyReader(bytes_max=20)
    messages: list[dict[str, Any]] = [
        {"type": "http.request", "body": b"abc", "more_body": True},
        {"type": "http.disconnect"},
    ]

    async def receive() -> dict[str, Any]:
        return messages.pop(0)

    with pytest.raises(ClientGone):
        read(reader, receive)
    assert reader.held_bytes == 0


def test_many_large_bodies_at_once_are_too_many() -> None:
    reader = BodyReader(bytes_max=20, wait_s=0.2)

    async def all_at_once() -> list[Any]:
        reads = [reader.read(SCOPE, sender([b"x" * 20], ends=False)) for _ in range(80)]
        return await asyncio.gather(*reads, return_exceptions=True)

    statuses = [error.error.status for error in asyncio.run(all_at_once())]
    assert sorted(statuses) == [408] * 64 + [503] * 16
    assert reader.held_bytes == 0
