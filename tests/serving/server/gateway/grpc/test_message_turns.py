"""Turns of calls to have their messages read: few at once, in order, and none for ever."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from functools import partial

import pytest

from serving.server.gateway.grpc import message_turns
from serving.server.gateway.grpc.message_turns import HeldMessage, MessageLate, MessageTurns
from serving.server.gateway.grpc.rpc_errors import CallRefused
from serving.server.gateway.ingress_account import IngressAccount
from serving.server.gateway.ingress_limits import IngressLimits, Limit

MESSAGE_BYTES = 2**24


class Books:
    """Turns and their account, and who has read how much at once."""

    def __init__(self, limits: IngressLimits | None = None) -> None:
        self.account = IngressAccount(limits)
        self.turns = MessageTurns(self.account, message_bytes_max=MESSAGE_BYTES)
        self.reading = self.most = 0
        self.order: list[str] = []

    async def read(
        self,
        turn: AbstractAsyncContextManager[HeldMessage],
        *,
        name: str = "",
        seconds: float = 0.0,
        size_bytes: int = 10,
    ) -> HeldMessage:
        async with turn as held:
            self.reading += 1
            self.most = max(self.most, self.reading)
            self.order.append(name)
            try:
                await asyncio.sleep(seconds)
                held.has_come(size_bytes)
            finally:
                self.reading -= 1
        return held


def run(use: Callable[[Books], Awaitable[None]], limits: IngressLimits | None = None) -> None:
    async def live() -> None:
        books = Books(limits)
        await asyncio.wait_for(use(books), 20.0)
        books.account.check()
        assert books.account.held_bytes == books.account.strangers == 0

    asyncio.run(live())


def test_calls_of_one_connection_without_a_key_are_read_one_by_one_in_their_order() -> None:
    async def use(books: Books) -> None:
        names = [str(number) for number in range(20)]
        reads = (books.read(books.turns.of_stranger("a"), name=name) for name in names)
        await asyncio.gather(*reads)
        assert (books.most, books.order) == (1, names)

    run(use)


@pytest.mark.long
def test_strangers_of_many_connections_have_few_turns_and_a_probe_among_them_has_its_own() -> None:
    async def use(books: Books) -> None:
        reads = [
            asyncio.ensure_future(books.read(books.turns.of_stranger(str(number)), seconds=9.0))
            for number in range(20)
        ]
        await asyncio.sleep(0)
        probe = asyncio.ensure_future(books.read(books.turns.of_stranger("probe")))
        ends = await asyncio.gather(*reads, return_exceptions=True)
        assert books.most == message_turns.STRANGER_TURNS
        assert all(isinstance(end, CallRefused) for end in ends)  # none had nine seconds
        await probe
        assert books.account.refusals == {Limit.MESSAGE_TIME: 20}

    run(use)


def test_a_probe_is_before_all_who_waited_and_may_stall_as_those_who_were_read() -> None:
    async def use(books: Books) -> None:
        stalled = [
            asyncio.ensure_future(books.read(books.turns.of_stranger(str(number)), seconds=9.0))
            for number in range(200)
        ]
        await asyncio.sleep(0)
        await books.read(books.turns.of_stranger("probe"), name="probe")
        assert books.order.index("probe") == message_turns.STRANGER_TURNS
        for call in stalled:
            call.cancel()
        await asyncio.gather(*stalled, return_exceptions=True)

    run(use)


def as_it_ends(time: asyncio.Timeout, act: Callable[[], object]) -> None:
    """`act` in the loop's turn in which the timeout is over."""
    until_s = time.when()
    assert until_s is not None
    asyncio.get_running_loop().call_at(until_s - 1e-9, act)


@pytest.mark.long
def test_a_call_that_comes_as_another_s_time_ends_has_its_turn_and_takes_none_away(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(message_turns, "STRANGER_TURNS", 1)
    monkeypatch.setattr(message_turns, "STRANGER_WAIT_S", 0.2)

    async def use(books: Books) -> None:
        for _ in range(2):
            slow = books.read(books.turns.of_stranger("a"), name="a", seconds=9.0)
            stalled = asyncio.ensure_future(slow)
            await asyncio.sleep(0)
            (time,) = books.turns._strangers.reading
            newcomer = books.read(books.turns.of_stranger("b"), name="b")
            as_it_ends(time, partial(asyncio.ensure_future, newcomer))
            with pytest.raises(MessageLate):
                await stalled
        await asyncio.wait_for(books.read(books.turns.of_stranger("c"), name="c"), 1.0)
        assert books.order == ["a", "b", "a", "b", "c"]

    run(use)


def test_a_call_that_is_cut_off_as_its_time_ends_disturbs_nobody_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(message_turns, "STRANGER_WAIT_S", 0.2)

    class Other:
        def cut_off(self, limit: Limit) -> None:
            raise AssertionError(limit)

    async def use(books: Books) -> None:
        stalled = asyncio.ensure_future(books.read(books.turns.of_stranger("a"), seconds=9.0))
        await asyncio.sleep(0)
        (time,) = books.turns._strangers.reading
        arrived = []

        def arrive() -> None:  # before the call has heard that its time is over
            assert time.expired()
            arrived.append(books.account.arrive(Other()))

        as_it_ends(time, lambda: asyncio.get_running_loop().call_soon(arrive))
        with pytest.raises(MessageLate):
            await stalled
        books.account.leave(arrived[0])

    run(use, IngressLimits(strangers_max=1))


def test_a_call_that_has_just_gone_makes_room_for_one_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(message_turns, "STRANGER_CALLS_MAX", 3)

    async def use(books: Books) -> None:
        calls = [
            asyncio.ensure_future(books.read(books.turns.of_stranger("a"), seconds=0.01))
            for _ in range(3)
        ]
        await asyncio.sleep(0)
        newcomer = asyncio.ensure_future(books.read(books.turns.of_stranger("b")))
        calls[2].cancel()
        await newcomer
        await asyncio.gather(*calls[:2])

    run(use)


def test_for_one_call_too_many_the_first_goes_where_each_connection_has_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(message_turns, "STRANGER_CALLS_MAX", 4)

    async def use(books: Books) -> None:
        calls = [
            asyncio.ensure_future(books.read(books.turns.of_stranger(name), seconds=0.01))
            for name in "abcd"
        ]
        await asyncio.sleep(0)
        await books.read(books.turns.of_stranger("probe"))
        ends = await asyncio.gather(*calls, return_exceptions=True)
        assert [isinstance(end, CallRefused) for end in ends] == [False, False, True, False]

    run(use)


@pytest.mark.long
def test_a_message_without_a_key_has_a_second_when_nobody_waits() -> None:
    async def use(books: Books) -> None:
        await books.read(books.turns.of_stranger("a"), seconds=0.3)
        with pytest.raises(CallRefused, match="did not arrive in time"):
            await books.read(books.turns.of_stranger("a"), seconds=9.0)

    run(use)


def test_calls_of_one_connection_that_are_too_many_are_refused() -> None:
    async def use(books: Books) -> None:
        calls = [
            asyncio.ensure_future(books.read(books.turns.of_stranger("a"), seconds=9.0))
            for _ in range(message_turns.CONNECTION_CALLS_MAX)
        ]
        await asyncio.sleep(0.01)
        with pytest.raises(CallRefused, match="too many calls"):
            await books.read(books.turns.of_stranger("a"))
        await asyncio.wait_for(books.read(books.turns.of_stranger("b")), 0.5)
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)

    run(use)


@pytest.mark.long
def test_for_one_call_too_many_the_connection_that_has_most_loses_its_last() -> None:
    async def use(books: Books) -> None:
        calls = {
            (connection, number): asyncio.ensure_future(
                books.read(books.turns.of_stranger(connection), seconds=0.0005)
            )
            for connection in "abcdefghi"
            for number in range(message_turns.CONNECTION_CALLS_MAX - (connection == "a"))
        }
        ends = await asyncio.gather(*calls.values(), return_exceptions=True)
        refused = [
            call
            for call, end in zip(calls, ends, strict=True)
            if isinstance(end, CallRefused) and not isinstance(end, MessageLate)
        ]
        assert len(refused) == 9 * message_turns.CONNECTION_CALLS_MAX - 1 - 1_024
        assert all(number > 64 for _, number in refused)

    run(use)


@pytest.mark.long
def test_a_key_s_turns_are_as_many_messages_as_it_may_have_held_and_nobody_else_s() -> None:
    async def use(books: Books) -> None:
        slow = [
            asyncio.ensure_future(books.read(books.turns.of_key("alice"), seconds=0.2))
            for _ in range(10)
        ]
        await asyncio.sleep(0.01)
        assert books.reading == message_turns.KEY_TURNS
        assert books.account.bytes_of("alice") == 4 * MESSAGE_BYTES
        await asyncio.wait_for(books.read(books.turns.of_key("bob")), 0.1)
        await asyncio.gather(*slow)

    run(use, IngressLimits(key_bytes_max=4 * MESSAGE_BYTES, total_bytes_max=8 * MESSAGE_BYTES))


def test_a_large_message_is_counted_until_it_is_let_go_and_a_small_one_until_it_has_come() -> None:
    async def use(books: Books) -> None:
        held = await books.read(books.turns.of_key("alice"), size_bytes=5_000_000)
        assert books.account.bytes_of("alice") == 5_000_000
        await books.read(books.turns.of_key("alice"), size_bytes=1_000)
        assert books.account.bytes_of("alice") == 5_000_000
        held.let_go()
        held.let_go()

    run(use)


def test_bodies_of_the_same_key_count_against_its_messages() -> None:
    async def use(books: Books) -> None:
        body = books.account.open("alice")
        assert books.account.hold(body, 63 * 2**20) is None
        with pytest.raises(CallRefused, match="with this key"):
            await books.read(books.turns.of_key("alice"))
        books.account.leave(body)
        await books.read(books.turns.of_key("alice"))

    run(use)


def test_calls_of_a_key_wait_where_their_turns_do_not_fit_beside_what_it_holds() -> None:
    async def use(books: Books) -> None:
        head = books.account.open("alice")
        assert books.account.hold(head, 1_000) is None
        calls = [
            books.read(
                books.turns.of_key("alice", of_several=number % 5 == 0),
                seconds=0.01,
                size_bytes=100,
            )
            for number in range(40)
        ]
        ends = await asyncio.gather(*calls, return_exceptions=True)
        assert not [end for end in ends if isinstance(end, Exception)]
        assert books.most == message_turns.KEY_TURNS - 1
        # Those of streams let go at the end of their turn, as `CallMessages` has them do.
        assert books.account.bytes_of("alice") == 1_000
        books.account.leave(head)

    run(use)


def test_a_call_that_goes_while_it_waits_or_as_its_turn_comes_leaves_its_turn_to_the_next() -> None:
    async def use(books: Books) -> None:
        for _ in range(50):
            first = asyncio.ensure_future(books.read(books.turns.of_stranger("a"), seconds=0.001))
            waiting = [
                asyncio.ensure_future(books.read(books.turns.of_stranger("a"))) for _ in range(3)
            ]
            await asyncio.sleep(0)
            waiting[0].cancel()
            await first
            waiting[1].cancel()  # it may have been given its turn just now
            await asyncio.wait_for(waiting[2], 1.0)
            await asyncio.gather(*waiting, return_exceptions=True)

    run(use)
