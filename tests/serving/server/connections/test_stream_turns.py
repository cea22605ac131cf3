"""The pace of strangers' calls, and whose last call is in doubt."""

import pytest

from serving.server.connections.stream_gate import HOLD_S
from serving.server.connections.stream_turns import (
    KEY_TURNS,
    STRANGER_TURNS,
    STRANGERS_CALLS,
    PortTurns,
)
from tests.serving.server.connections.gated_clients import CALL_S, Clock, Connect, Connection
from tests.serving.server.connections.http2_frames import HEADERS, RST_STREAM, frame


def answer_at_once(connections: list[Connection], clock: Clock, seconds: float) -> None:
    """Let time pass in which all call, as often as they may, and are answered in no time."""
    until_s = clock.now_s + seconds
    while clock.now_s < until_s:
        for each in connections:
            each.gate.answered(range(1, 2 * each.begun, 2))
            if not each.gate.waits:
                each.calls(20)
        clock.pass_s(0.01)


def test_strangers_calls_that_are_answered_at_once_have_a_pace(
    connect: Connect, clock: Clock
) -> None:
    hostile = [connect() for _ in range(40)]
    answer_at_once(hostile, clock, 1.0)  # the turns of all have begun
    before = sum(each.begun for each in hostile)
    answer_at_once(hostile, clock, 3.0)
    begun = sum(each.begun for each in hostile) - before
    assert begun == pytest.approx(3.0 / CALL_S, rel=0.05)

    new = connect()
    new.calls()
    answer_at_once(hostile, clock, 0.02)
    assert new.begun == 1  # none of the others' first calls is before it
    new.gate.answered([1])
    new.gate.showed("alice")
    new.calls(KEY_TURNS)
    assert new.begun == 1 + KEY_TURNS


def test_a_turn_of_a_stranger_is_over_when_the_server_has_taken_its_call(
    connect: Connect, port: PortTurns, clock: Clock
) -> None:
    """Its message may never come: that is no reason for others to wait."""
    one = connect()
    one.calls(STRANGER_TURNS)
    for _ in range(STRANGER_TURNS):
        one.gate.took()
    assert port.strangers.taken == 0
    clock.pass_s(HOLD_S)
    one.calls()
    assert (port.strangers.taken, port.doubtful.taken) == (1, 0)


def test_a_stranger_in_doubt_is_trusted_again_when_a_taken_call_is_answered(
    connect: Connect, port: PortTurns
) -> None:
    one = connect()
    one.calls(takes_back=True)
    one.gate.took()
    one.calls(2)
    assert port.doubtful.taken == 2
    one.gate.took()
    one.gate.took()
    one.gate.answered([3])  # which says nothing of the newest
    one.calls()
    assert port.doubtful.taken == 1
    one.gate.took()
    one.gate.answered([7])
    one.calls()
    assert (port.strangers.taken, port.doubtful.taken) == (1, 0)


@pytest.mark.parametrize("is_answered", [False, True])
def test_who_takes_a_taken_call_back_is_in_doubt_unless_it_was_answered(
    connect: Connect, port: PortTurns, *, is_answered: bool
) -> None:
    one = connect()
    one.calls()
    one.gate.took()
    one.gate.answered([1] if is_answered else [])
    one.says(frame(RST_STREAM, 1, b"\0\0\0\x08"))
    one.calls()
    assert (port.strangers.taken, port.doubtful.taken) == (is_answered, not is_answered)


def test_who_has_gone_keeps_no_place_in_the_pace(port: PortTurns, clock: Clock) -> None:
    class Gone:
        """A connection that ended while it waited for its turn."""

        turn_s = 0.0

        def turn_came(self) -> bool:
            return False

    honest = Connection(port, clock)
    for _ in range(STRANGERS_CALLS):
        assert port.strangers.begin(Gone())
        port.strangers.end()
    for _ in range(10 * STRANGERS_CALLS):
        assert not port.strangers.begin(Gone())
    honest.calls()
    clock.pass_s(0.01)
    assert honest.begun == 1


def test_a_pace_that_was_not_used_is_there_at_once(connect: Connect, clock: Clock) -> None:
    one = connect()
    for stream in range(1, 2 * STRANGERS_CALLS + 1, 2):
        one.says(frame(HEADERS, stream, b"h"))
        one.gate.answered([stream])
        assert not one.gate.waits
    one.says(frame(HEADERS, 2 * STRANGERS_CALLS + 1, b"h"))
    assert one.gate.waits
    clock.pass_s(0.005)
    assert not one.gate.waits
