import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.arrivals.closed_loop import ClosedLoop
from loadgen.arrivals.piecewise_linear import PiecewiseLinear
from loadgen.arrivals.rate_shape import parse_rate
from loadgen.errors import OptionError

S = 1_000_000_000


def closed(text: str, *, ends_ns: int | None = None) -> ClosedLoop:
    shape = parse_rate(text)
    assert isinstance(shape, PiecewiseLinear)
    return ClosedLoop(concurrency=shape, ends_ns=ends_ns)


PAIR = closed("2")
RAMP = closed("ramp:1-5/40s")  # one more every 10 s
HILL = closed("series:0s=1,10s=5,20s=1,40s=1")
THIRDS = closed("ramp:1-4/1s")  # room for the second after a third of a second
DAY = closed("series:0s=4,10s=1,20s=1,20s=3,30s=3")  # down to 1, and at 20 s at once up to 3


@pytest.mark.parametrize(
    ("pacer", "elapsed_ns", "in_flight", "due_ns"),
    [
        # two at a time: room for the first and the second, now
        (PAIR, 0, 0, 0),
        (PAIR, 5, 1, 5),
        # two at a time, both under way: not before one has ended
        (PAIR, 5, 2, None),
        # two at a time, one has ended: now
        (PAIR, 9 * S, 1, 9 * S),
        # a ramp from 1: one at the start, room for the second after 10 s, for the fifth after 40
        (RAMP, 0, 0, 0),
        (RAMP, 0, 1, 10 * S),
        (RAMP, 9 * S, 1, 10 * S),
        (RAMP, 10 * S, 1, 10 * S),
        (RAMP, 12 * S, 4, 40 * S),
        # the ramp has ended at 5: no room for a sixth until one ends
        (RAMP, 12 * S, 5, None),
        (RAMP, 90 * S, 5, None),
        (RAMP, 90 * S, 4, 90 * S),
        # falling from 4 to 1: after 5 s there is room for two
        (DAY, 0, 3, 0),
        (DAY, 5 * S, 1, 5 * S),
        # 3 in flight while it falls, 2 at 15 s: room again at 20 s, when it is 3
        (DAY, 15 * S, 2, 20 * S),
        (DAY, 15 * S, 3, None),
        # up and down again: what was reached once is not reached any more
        (HILL, 30 * S, 3, None),
        (HILL, 12 * S, 4, None),
        # between two nanoseconds: the one at which there is room
        (THIRDS, 0, 1, 333_333_334),
    ],
)
def test_a_closed_loop_says_when_there_is_room(
    pacer: ClosedLoop, elapsed_ns: int, in_flight: int, due_ns: int | None
) -> None:
    assert pacer.pace(elapsed_ns=elapsed_ns, sent=99, in_flight=in_flight) == due_ns


def test_from_its_end_on_no_session_begins() -> None:
    pacer = closed("2", ends_ns=10 * S)

    assert (pacer.ends_ns, pacer.sessions) == (10 * S, None)
    assert pacer.pace(elapsed_ns=10 * S - 1, sent=5, in_flight=0) == 10 * S - 1
    assert pacer.pace(elapsed_ns=10 * S, sent=5, in_flight=0) is None


levels = st.lists(
    st.tuples(st.integers(0, 20), st.floats(1, 40).map(lambda level: round(level, 1))),
    min_size=1,
    max_size=6,
)


def shape_of(points: list[tuple[int, float]]) -> PiecewiseLinear:
    times, total = [], 0
    for at, (width, _) in enumerate(points):
        total += width if at else 0
        times.append(float(total))
    return PiecewiseLinear(times_s=tuple(times), rates_per_s=tuple(level for _, level in points))


def room(pacer: ClosedLoop, elapsed_ns: int) -> int:
    """Begin sessions until there is no more room now."""
    count = 0
    while pacer.pace(elapsed_ns=elapsed_ns, sent=0, in_flight=count) == elapsed_ns:
        count += 1
    return count


@given(points=levels, workers=st.integers(1, 8), elapsed_ns=st.integers(0, 130 * S))
def test_the_shares_of_all_workers_add_up_to_the_whole_at_every_moment(
    points: list[tuple[int, float]], workers: int, elapsed_ns: int
) -> None:
    whole = ClosedLoop(concurrency=shape_of(points))
    if workers > int(points[-1][1]):
        with pytest.raises(OptionError, match=r"^--workers="):
            whole.part(0, workers)
        return

    shares = [room(whole.part(worker, workers), elapsed_ns) for worker in range(workers)]

    assert sum(shares) == room(whole, elapsed_ns)
    assert max(shares) - min(shares) <= 1


@given(points=levels, elapsed_ns=st.integers(0, 130 * S), in_flight=st.integers(0, 45))
def test_there_is_room_at_the_time_that_was_given_and_not_a_microsecond_before(
    points: list[tuple[int, float]], elapsed_ns: int, in_flight: int
) -> None:
    pacer = ClosedLoop(concurrency=shape_of(points))

    due_ns = pacer.pace(elapsed_ns=elapsed_ns, sent=0, in_flight=in_flight)

    if due_ns is None:
        later_ns = [*(round(at * S) for at in pacer.concurrency.times_s), 200 * S]
        assert all(room(pacer, at) <= in_flight for at in later_ns if at > elapsed_ns)
    else:
        # One more nanosecond, for a level reached between two of them.
        assert room(pacer, due_ns + 1) > in_flight or room(pacer, due_ns) > in_flight
        if due_ns - 1_000 > elapsed_ns:
            assert room(pacer, due_ns - 1_000) <= in_flight


@pytest.mark.parametrize("text", ["0.5", "ramp:0-4/10s", "ramp:4-0/10s"])
def test_a_closed_loop_of_nobody_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="at least 1"):
        closed(text)


def test_more_workers_than_sessions_in_flight_are_refused() -> None:
    with pytest.raises(OptionError, match=r"^--workers=3: expected at most 2"):
        PAIR.part(0, 3)
