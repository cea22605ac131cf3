"""Whose call begins: by hand, and with many hostile connections beside one that is not."""

import asyncio
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.server.connections import stream_gate, stream_turns
from serving.server.connections.connection_registry import ConnectionRegistry, PortLimits
from serving.server.connections.grpc_relay import GrpcConnection, GrpcSocket, ServerSide
from serving.server.connections.stream_gate import BLOCK_BYTES_MAX, HOLD_S, BadHeaders
from serving.server.connections.stream_turns import (
    DOUBTFUL_PERIOD_S,
    DOUBTFUL_TURNS,
    KEY_TURNS,
    STRANGER_TURNS,
    PortTurns,
)
from tests.serving.server.connections.gated_clients import CALL_S, Clock, Connect, Connection
from tests.serving.server.connections.http2_frames import (
    CONTINUATION,
    CUTS,
    DATA,
    HEADERS,
    PING,
    PREFACE,
    RST_STREAM,
    frame,
    pieces,
)


def test_a_turn_begins_with_a_call_and_ends_with_its_answer(
    connect: Connect, port: PortTurns
) -> None:
    one = connect()
    one.calls(STRANGER_TURNS + 2)
    assert one.begun == port.strangers.taken == STRANGER_TURNS
    assert one.gate.waits
    one.gate.answered([1])
    assert one.begun == STRANGER_TURNS + 1
    one.gate.answered([1])  # its trailers are no second answer
    assert one.begun == STRANGER_TURNS + 1
    one.gate.answered([3, 5])
    assert one.begun == STRANGER_TURNS + 2
    assert not one.gate.waits


def test_a_call_without_an_answer_has_its_turn_for_a_while_and_its_connection_a_worse_place(
    connect: Connect, port: PortTurns, clock: Clock
) -> None:
    one = connect()
    one.calls(40)
    clock.pass_s(HOLD_S)
    assert port.strangers.taken == 0
    assert port.doubtful.taken == DOUBTFUL_TURNS
    assert one.begun == STRANGER_TURNS + DOUBTFUL_TURNS
    one.gate.answered([2 * one.begun - 1])  # the newest
    assert port.strangers.taken == STRANGER_TURNS  # it is trusted again
    assert one.begun == 2 * STRANGER_TURNS + DOUBTFUL_TURNS


def test_a_call_that_is_taken_back_keeps_its_turn_whatever_the_server_says(
    connect: Connect, port: PortTurns, clock: Clock
) -> None:
    one = connect()
    one.calls(takes_back=True)
    one.gate.answered([1])
    assert port.strangers.taken == 1
    clock.pass_s(HOLD_S)
    assert port.strangers.taken == 0


def test_a_connection_that_ends_waits_no_more_and_its_turns_end_by_their_time(
    connect: Connect, port: PortTurns, clock: Clock
) -> None:
    one, other = connect(), connect()
    one.calls(STRANGER_TURNS + 1)
    other.calls()
    one.gate.leave()
    clock.pass_s(HOLD_S)
    assert other.begun == 1
    assert one.begun == STRANGER_TURNS
    other.gate.answered([1])
    assert port.strangers.taken == 0


@pytest.mark.parametrize("is_taken", [False, True])
def test_sixty_that_take_their_calls_back_delay_no_other(
    connect: Connect, clock: Clock, *, is_taken: bool
) -> None:
    hostile = [connect() for _ in range(60)]

    def pass_s(seconds: float) -> None:
        """Let time pass; the server takes what has begun every 5 ms, or nothing at all."""
        for _ in range(round(seconds / 0.005)):
            clock.pass_s(0.005)
            for each in hostile if is_taken else ():
                each.gate.took()

    for each in hostile:
        each.calls(200, takes_back=True)
    pass_s(1.0)
    honest = connect()
    for stream in range(1, 41, 2):
        honest.calls()
        assert honest.begun == (stream + 1) // 2  # at once
        honest.gate.answered([stream])
        pass_s(0.005)
    begun = sum(each.begun for each in hostile)
    pass_s(10.0)
    per_s = (sum(each.begun for each in hostile) - begun) / 10.0
    assert per_s == pytest.approx(DOUBTFUL_TURNS / DOUBTFUL_PERIOD_S, rel=0.1)
    shares = [each.begun for each in hostile]
    assert max(shares) - min(shares) <= STRANGER_TURNS  # which the first had while it was alone


def test_sixty_that_never_end_their_calls_and_one_that_comes_anew_each_time(
    connect: Connect, clock: Clock
) -> None:
    for _ in range(60):
        connect().calls(200)
    clock.pass_s(1.0)
    for _ in range(20):
        honest = connect()
        honest.calls()
        clock.pass_s(2 * HOLD_S)
        assert honest.begun == 1
        honest.gate.answered([1])
        honest.gate.leave()


def test_of_two_that_are_answered_the_one_that_rested_is_next(
    connect: Connect,
) -> None:
    busy, rested = connect(), connect()
    busy.calls(50)
    rested.calls()
    assert rested.begun == 0
    busy.gate.answered([1])
    assert (busy.begun, rested.begun) == (STRANGER_TURNS, 1)
    busy.gate.answered([3])
    assert busy.begun == STRANGER_TURNS + 1


def test_who_has_shown_a_key_waits_for_no_stranger_and_for_nobody_with_another_key(
    connect: Connect, port: PortTurns
) -> None:
    keyed, greedy, stranger = connect(), connect(), connect()
    stranger.calls(100)
    for each in (keyed, greedy):
        each.calls()
        assert each.begun == 0
    stranger.gate.answered([1, 3])
    keyed.gate.showed("one")
    greedy.gate.showed("other")
    assert not keyed.gate.is_stranger
    greedy.calls(KEY_TURNS + 10)
    assert greedy.begun == KEY_TURNS + 1
    keyed.calls(10)
    assert keyed.begun == 11
    greedy.gate.showed("other")  # the server has taken the next of its calls
    assert greedy.begun == KEY_TURNS + 2
    assert port.of_key("one").taken == 10


def test_whose_first_call_shows_a_key_is_not_kept_waiting_with_strangers(
    connect: Connect,
) -> None:
    one = connect()
    one.calls(STRANGER_TURNS + 5)
    assert one.begun == STRANGER_TURNS
    one.gate.showed("key")
    assert one.begun == STRANGER_TURNS + 5


def test_a_stranger_that_does_not_read_begins_nothing_and_keeps_no_turn(
    connect: Connect, port: PortTurns
) -> None:
    one, other = connect(), connect()
    one.calls(STRANGER_TURNS + 1)
    one.gate.jammed(is_jammed=True)
    other.calls()
    one.gate.answered([1, 3])
    assert one.begun == STRANGER_TURNS
    assert other.begun == 1
    one.gate.jammed(is_jammed=False)
    assert one.begun == STRANGER_TURNS + 1


def test_frames_that_mean_little_have_a_pace_and_a_clients_own_are_far_from_it(
    connect: Connect, clock: Clock
) -> None:
    one = connect()
    ping = frame(PING, 0, b"12345678")
    one.says(ping * 5_000)
    at_once = one.heard.count(ping)
    assert at_once == stream_gate.STRANGER_FRAMES_PER_S
    clock.pass_s(1.0)
    assert one.heard.count(ping) - at_once == pytest.approx(1_000, rel=0.01)

    other = connect()
    for stream in range(1, 4_001, 2):  # calls as fast as they can be, each with eight frames more
        other.says(frame(HEADERS, stream, b"h") + frame(DATA, stream, b"d") + ping * 7)
        other.gate.answered([stream])
        assert not other.gate.waits
        clock.pass_s(CALL_S)


@pytest.mark.long
def test_large_data_has_no_pace(connect: Connect) -> None:
    one = connect()
    one.calls()
    data = frame(DATA, 1, bytes(16_384)) * 3_000
    one.says(data)
    assert one.heard.endswith(data)


def test_headers_that_do_not_end_end_the_connection(connect: Connect) -> None:
    one = connect()
    one.calls()
    part = frame(CONTINUATION, 1, bytes(16_000))
    one.says(part * (BLOCK_BYTES_MAX // 16_000))
    with pytest.raises(BadHeaders):
        one.says(part)
    assert len(one.heard) <= BLOCK_BYTES_MAX + 200


@pytest.mark.parametrize("stream", [0, 2, 2**31 - 2])
def test_a_stream_that_no_client_may_begin_ends_the_connection(
    connect: Connect, stream: int
) -> None:
    one = connect()
    with pytest.raises(BadHeaders):
        one.says(frame(HEADERS, stream, b"h"))


def test_streams_that_go_down_or_come_again_need_their_turns_too(connect: Connect) -> None:
    one, other = connect(), connect()
    for stream in (2**31 - 1, *range(201, 1, -2)):
        one.says(frame(HEADERS, stream, b"h" * 50))
    assert one.begun == STRANGER_TURNS
    for _ in range(100):
        other.says(frame(HEADERS, 1, b"h" * 50))
    assert other.begun == 0


def test_an_answer_ends_a_doubt_however_late_it_comes(connect: Connect, clock: Clock) -> None:
    honest = connect()
    honest.calls()
    clock.pass_s(HOLD_S + 0.01)
    honest.gate.answered([1])
    for _ in range(60):
        connect().calls(200, takes_back=True)
    clock.pass_s(1.0)
    honest.calls()
    assert honest.begun == 2


def test_a_call_that_the_server_has_taken_ends_its_own_turn_also_if_it_was_taken_back(
    connect: Connect, port: PortTurns
) -> None:
    one = connect()
    one.calls()
    one.gate.showed("key")
    one.calls(takes_back=True)
    one.calls()
    one.gate.showed("key")
    assert list(one.gate._under_way) == [5]
    assert port.of_key("key").taken == 1


@pytest.mark.long
def test_all_strangers_together_have_a_pace_and_who_only_connects_does_not_wait_for_it(
    connect: Connect, clock: Clock
) -> None:
    ping = frame(PING, 0, b"12345678")
    hostile = [connect() for _ in range(50)]
    for each in hostile:
        each.says(ping * 5_000)
    clock.pass_s(2.0)
    before = sum(each.heard.count(ping) for each in hostile)
    clock.pass_s(2.0)
    honest = connect()
    honest.says(ping * 4)
    assert honest.heard.count(ping) == 4
    per_s = (sum(each.heard.count(ping) for each in hostile) - before) / 2.0
    assert per_s == pytest.approx(stream_turns.STRANGERS_FRAMES_PER_S, rel=0.1)


class Socket:
    """A client's transport, and the socket below it."""

    def __init__(self) -> None:
        self.written = b""
        self.is_there = True

    def is_closing(self) -> bool:
        return False

    def get_extra_info(self, name: str) -> "Socket | None":
        return self if name == "socket" else None

    def getsockopt(self, *asked: int) -> bytes:
        del asked
        return bytes([1 if self.is_there else 8])  # ESTABLISHED or CLOSE_WAIT

    def write(self, data: bytes) -> None:
        self.written += data

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...

    def abort(self) -> None:
        self.is_there = False


def test_who_goes_while_it_waits_takes_no_turn_with_it(port: PortTurns, clock: Clock) -> None:
    buffer = memoryview(bytearray(2**10))

    def came() -> tuple[Socket, Socket]:
        client, server = Socket(), Socket()
        behind = GrpcSocket(Path("nowhere.sock"))
        behind.turns, behind.clock = port, clock
        registry = ConnectionRegistry(PortLimits())
        one = GrpcConnection(behind, b"", registry=registry, head_wait_s=20.0, buffer=buffer)
        beyond = ServerSide(one.gate)
        one.join(beyond)
        one.connection_made(client)  # type: ignore[arg-type]
        beyond.connection_made(server)  # type: ignore[arg-type]
        one.begin_relay()
        said = PREFACE + frame(HEADERS, 1, b"h" * 50)
        one.get_buffer(len(said))[: len(said)] = said
        one.buffer_updated(len(said))
        return client, server

    async def main() -> None:
        waiting = [came() for _ in range(40)]
        begun = [server for _, server in waiting if server.written.count(b"h" * 50)]
        assert len(begun) == STRANGER_TURNS
        for client, _ in waiting:
            client.is_there = False  # which nobody sees who does not read
        clock.pass_s(2 * HOLD_S)
        assert port.strangers.taken == port.doubtful.taken == 0
        _, server = came()
        assert server.written.count(b"h" * 50) == 1

    asyncio.run(main())


@given(
    said=st.lists(
        st.sampled_from(
            [
                frame(HEADERS, 1, b"h" * 50),
                frame(HEADERS, 2**20 + 1, b"h" * 50),
                frame(HEADERS, 3, b"h" * 50),
                frame(DATA, 1, bytes(2_000)),
                frame(DATA, 1, b"d"),
                frame(PING, 0, b"12345678"),
                frame(RST_STREAM, 1, b"\0\0\0\x08"),
            ]
        ),
        max_size=30,
    ),
    cuts=CUTS,
    waits_s=st.lists(st.floats(0, 0.2), max_size=12),
)
def test_no_byte_is_lost_or_goes_before_another_and_no_turn_stays(
    said: list[bytes], cuts: list[int], waits_s: list[float]
) -> None:
    clock = Clock()
    port = PortTurns(clock)
    others = [Connection(port, clock) for _ in range(20)]
    for each in others:
        each.calls(3)
    one = Connection(port, clock)
    data = b"".join(said)
    pauses_s = iter(waits_s)
    for piece in pieces(data, cuts):
        one.says(piece)
        assert (PREFACE + data).startswith(one.heard)
        clock.pass_s(next(pauses_s, 0.0))
    clock.pass_s(60.0)
    assert one.heard == PREFACE + data
    assert port.strangers.taken == port.doubtful.taken == 0
    assert all(each.begun == 3 for each in others)
