import asyncio
from collections.abc import Callable
from itertools import count

from hypothesis import given
from hypothesis import strategies as st

from loadgen.clients import stamped_connection
from loadgen.clients.stamped_connection import ArrivalQueue


class Parsed:
    """Notes what it was given; `then` is called after each."""

    def __init__(self, then: Callable[[], None] = lambda: None) -> None:
        self.seen: list[tuple[bytes, int]] = []
        self._then = then

    def parse(self, data: bytes, at_ns: int) -> None:
        self.seen.append((data, at_ns))
        self._then()


def test_a_burst_is_stamped_before_any_of_it_is_parsed() -> None:
    async def burst() -> list[tuple[bytes, int]]:
        clock = count()
        queue = ArrivalQueue(asyncio.get_running_loop(), lambda: next(clock))
        parser = Parsed(then=lambda: next(clock))  # parsing takes time
        for data in (b"a", b"b", b"c"):
            queue.add(parser, data)
        while len(parser.seen) < 3:
            await asyncio.sleep(0)
        return parser.seen

    assert asyncio.run(burst()) == [(b"a", 0), (b"b", 1), (b"c", 2)]


def test_parsing_waits_for_a_turn_of_the_loop_that_brings_nothing() -> None:
    async def turns() -> list[int]:
        queue = ArrivalQueue(asyncio.get_running_loop(), lambda: 0)
        parser = Parsed()
        seen = []
        for turn in range(6):
            if turn < 3:
                queue.add(parser, b"")
            await asyncio.sleep(0)
            seen.append(len(parser.seen))
        return seen

    assert asyncio.run(turns()) == [0, 0, 0, 3, 3, 3]


def test_it_waits_no_longer_than_for_the_most_that_may_wait() -> None:
    async def flood() -> int:
        queue = ArrivalQueue(asyncio.get_running_loop(), lambda: 0)
        parser = Parsed()
        for _ in range(4):
            for _ in range(stamped_connection.WAITING_MAX // 4):
                queue.add(parser, b"")
            await asyncio.sleep(0)
        await asyncio.sleep(0)
        queue.add(parser, b"")
        return len(parser.seen)

    assert asyncio.run(flood()) == stamped_connection.WAITING_MAX


def test_a_drain_parses_everything_at_once_and_what_a_parser_adds_meanwhile() -> None:
    async def drain() -> tuple[int, int]:
        queue = ArrivalQueue(asyncio.get_running_loop(), lambda: 0)
        late = Parsed()
        nested = Parsed(then=queue.drain)
        adding = Parsed(then=lambda: queue.add(late, b""))
        for parser in (nested, adding, nested):
            queue.add(parser, b"")
        queue.drain()
        return len(nested.seen), len(late.seen)

    assert asyncio.run(drain()) == (2, 1)


@given(bursts=st.lists(st.integers(0, 5), max_size=12))
def test_everything_is_parsed_once_in_its_order(bursts: list[int]) -> None:
    async def play() -> list[tuple[bytes, int]]:
        clock = count()
        queue = ArrivalQueue(asyncio.get_running_loop(), lambda: next(clock))
        parser = Parsed()
        for burst in bursts:
            for _ in range(burst):
                queue.add(parser, b"")
            await asyncio.sleep(0)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        return parser.seen

    assert [at for _, at in asyncio.run(play())] == list(range(sum(bursts)))
