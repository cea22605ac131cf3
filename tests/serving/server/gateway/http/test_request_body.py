"""Bodies within their limits of size, time and memory, from senders of every kind."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.server.gateway.http.http_errors import HttpRefused
from serving.server.gateway.http.request_body import LARGE_BYTES, BodyReader, ClientGone
from serving.server.gateway.ingress_account import IngressAccount
from serving.server.gateway.ingress_limits import IngressLimits

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


def reader_of(*, bytes_max: int, **limits: float) -> BodyReader:
    return BodyReader(bytes_max=bytes_max, account=IngressAccount(IngressLimits(**limits)))  # type: ignore[arg-type]


def read(reader: BodyReader, receive: Any, scope: dict[str, Any] = SCOPE) -> bytes:
    async def live() -> bytes:
        with await asyncio.wait_for(reader.read(scope, receive, key="alice"), 5.0) as held:
            return held.take()

    return asyncio.run(live())


@given(st.lists(st.binary(max_size=8), min_size=1, max_size=8))
def test_a_body_is_what_was_sent_if_it_is_small_enough(parts: list[bytes]) -> None:
    reader, whole = reader_of(bytes_max=20), b"".join(parts)
    if len(whole) <= 20:
        assert read(reader, sender(parts)) == whole
    else:
        with pytest.raises(HttpRefused) as refused:
            read(reader, sender(parts))
        assert refused.value.error.status == 413
    assert reader.account.held_bytes == 0


def test_a_body_that_says_it_is_too_large_is_not_read_at_all() -> None:
    async def receive() -> dict[str, Any]:
        raise AssertionError("nobody reads")

    for said in (b"21", b"9" * 4_000):
        with pytest.raises(HttpRefused) as refused:
            read(
                reader_of(bytes_max=20),
                receive,
                {"headers": [(b"content-length", said)]},
            )
        assert (refused.value.error.status, refused.value.error.closes) == (413, True)


def test_a_sender_that_stops_is_told_so_after_its_time() -> None:
    reader = reader_of(bytes_max=20, body_wait_s=0.02)
    for receive in (sender([b"ab"], ends=False), sender([], ends=False)):
        with pytest.raises(HttpRefused) as refused:
            read(reader, receive)
        assert refused.value.error.status == 408
    assert reader.account.held_bytes == 0


def test_a_trickle_is_told_so_though_something_comes_all_the_time() -> None:
    reader = reader_of(bytes_max=1_000, body_wait_s=0.02, bytes_per_s_min=1_000.0)
    with pytest.raises(HttpRefused) as refused:
        read(reader, sender([b"x"] * 500, pause_s=0.005))
    assert refused.value.error.status == 408


def test_a_sender_that_is_slow_and_fast_enough_has_its_time() -> None:
    reader = reader_of(bytes_max=1_000, body_wait_s=0.02, bytes_per_s_min=100.0)
    assert len(read(reader, sender([b"x" * 10] * 10, pause_s=0.005))) == 100


def test_a_client_that_goes_while_it_sends_leaves_nothing_behind() -> None:
    reader = reader_of(bytes_max=20)
    messages: list[dict[str, Any]] = [
        {"type": "http.request", "body": b"abc", "more_body": True},
        {"type": "http.disconnect"},
    ]

    async def receive() -> dict[str, Any]:
        return messages.pop(0)

    with pytest.raises(ClientGone):
        read(reader, receive)
    assert reader.account.held_bytes == 0


def test_many_large_bodies_at_once_are_too_many_of_one_key_and_then_of_all() -> None:
    reader = reader_of(bytes_max=20, body_wait_s=0.2, key_bytes_max=60, total_bytes_max=100)

    async def all_at_once() -> dict[str, list[int]]:
        statuses: dict[str, list[int]] = {"alice": [], "bob": []}

        async def one(key: str) -> None:
            with pytest.raises(HttpRefused) as refused:
                await reader.read(SCOPE, sender([b"x" * 20], ends=False), key=key)
            assert refused.value.error.closes
            statuses[key].append(refused.value.error.status)

        await asyncio.gather(*(one(key) for key in ("alice", "bob") for _ in range(5)))
        return {key: sorted(each) for key, each in statuses.items()}

    assert asyncio.run(all_at_once()) == {
        "alice": [408] * 3 + [429] * 2,
        "bob": [408] * 2 + [503] * 3,
    }
    assert reader.account.held_bytes == 0


def test_a_large_body_is_counted_until_it_is_let_go_and_a_small_one_until_it_was_read() -> None:
    reader = reader_of(bytes_max=2 * LARGE_BYTES)

    async def live() -> None:
        parts = [b"x" * LARGE_BYTES]
        held = await reader.read(SCOPE, sender(parts), key="alice")
        small = await reader.read(SCOPE, sender([b"x"]), key="alice")
        assert reader.account.bytes_of("alice") == LARGE_BYTES
        assert (held.take(), small.take()) == (parts[0], b"x")
        assert reader.account.bytes_of("alice") == LARGE_BYTES
        held.let_go()
        held.let_go()
        assert reader.account.held_bytes == 0

    asyncio.run(live())
