"""Steady time: as fast as the server's clock, never back, and a dispatch that goes by it."""

import itertools
from functools import partial

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from loadgen.dispatch.dispatched_class import DispatchedClass
from loadgen.dispatch.dispatcher import Dispatcher
from loadgen.dispatch.pace import Pace
from loadgen.dispatch.timetable import LoopTimer
from loadgen.records.result import Result
from tests.loadgen.dispatch.shaped_workload import MS, ONE, TALK, closed, even, traffic
from tests.loadgen.dispatch.test_dispatcher import FakeClient
from tests.loadgen.dispatch.virtual_loop import VirtualLoop, run_virtually

LATE_MS = 0.03


def test_steady_time_by_hand() -> None:
    pace = Pace()
    pace.change(4.0, at_wall_ns=1_000)
    pace.change(0.5, at_wall_ns=2_000)

    assert [pace.steady_ns(at) for at in (0, 1_000, 1_500, 2_000, 3_000)] == [
        *(0, 1_000, 3_000, 5_000),
        5_500,
    ]
    assert [pace.wall_ns(at) for at in (500, 3_000, 5_500)] == [500, 1_500, 3_000]


CHANGES = st.lists(st.tuples(st.integers(0, 10**10), st.floats(0.001, 1_000.0)), max_size=20)


@example(changes=[(0, 0.25), (2, 1.0)], walls=[0, 0])  # changes within one steady ns
@given(changes=CHANGES, walls=st.lists(st.integers(0, 10**12), min_size=2, max_size=20))
def test_it_rises_and_a_timer_never_calls_too_early(
    changes: list[tuple[int, float]], walls: list[int]
) -> None:
    pace, at = Pace(), 0
    for after_ns, factor in changes:
        at += after_ns
        pace.change(factor, at_wall_ns=at)

    steady = [pace.steady_ns(wall) for wall in sorted(walls)]
    assert all(a <= b for a, b in itertools.pairwise(steady))
    for each in steady:
        # Floats of 10^15 are some tenths apart, and a wall ns may be 1,000 steady ones.
        assert pace.steady_ns(pace.wall_ns(each)) >= each - 1
        assert pace.wall_ns(each) <= max(walls) + 1


def dispatched(
    *traffics: DispatchedClass, follows: tuple[tuple[float, float], ...]
) -> list[Result]:
    """Results of a dispatch whose pace changes at the given wall ms."""
    loop = VirtualLoop()
    client = FakeClient(loop, lambda _: 5.0)
    results: list[Result] = []
    dispatcher = Dispatcher(
        [(each, client) for each in traffics],
        sink=results.append,
        now_ns=loop.now_ns,
        timer=partial(LoopTimer, now_ns=loop.now_ns),
    )
    for at_ms, factor in follows:
        loop.call_at(at_ms / 1e3, dispatcher.follow, factor)
    run_virtually(loop, dispatcher.run())
    return sorted(results, key=lambda each: each.sent_ns)


def sent_ms(results: list[Result]) -> list[float]:
    return [each.sent_ns / MS for each in results]


def test_a_schedule_goes_faster_and_slower_with_the_server_s_clock() -> None:
    results = dispatched(traffic(even(8), sessions=[ONE] * 8), follows=((25.0, 4.0), (32.5, 0.5)))

    # Every 10 steady ms: at 25 wall ms it is 25, at 32.5 it is 55.
    expected = [0.0, 10.0, 20.0, 26.25, 28.75, 31.25, 42.5, 62.5]
    assert sent_ms(results) == pytest.approx(expected, abs=LATE_MS)
    assert [each.intended_ns / MS for each in results] == pytest.approx(expected, abs=LATE_MS)
    assert all(each.intended_ns <= each.sent_ns for each in results)


def test_a_pace_that_is_known_before_the_start_counts_from_there() -> None:
    loop = VirtualLoop()
    results: list[Result] = []
    dispatcher = Dispatcher(
        [(traffic(even(4), sessions=[ONE] * 4), FakeClient(loop, lambda _: 1.0))],
        sink=results.append,
        now_ns=loop.now_ns,
        timer=partial(LoopTimer, now_ns=loop.now_ns),
    )
    dispatcher.follow(0.5)
    run_virtually(loop, dispatcher.run())

    assert sent_ms(results) == pytest.approx([0.0, 20.0, 40.0, 60.0], abs=LATE_MS)


def test_arrivals_in_wall_time_stay_in_wall_time() -> None:
    by_wall = traffic(even(4), sessions=[ONE] * 4)
    by_wall = DispatchedClass(**{**fields_of(by_wall), "follows_server": False})
    assert by_wall.part(0, 2).follows_server is False

    results = dispatched(by_wall, follows=((5.0, 4.0),))

    assert sent_ms(results) == pytest.approx([0.0, 10.0, 20.0, 30.0], abs=LATE_MS)


def fields_of(one: DispatchedClass) -> dict[str, object]:
    return {name: getattr(one, name) for name in DispatchedClass.__dataclass_fields__}


def test_think_times_are_in_the_server_s_time() -> None:
    # Calls take 5 wall ms; the thinking between them is 50 and 20 ms of the server's time.
    results = dispatched(
        traffic(closed((0.0, 1.0)), sessions=[TALK]), follows=((15.0, 2.0), (60.0, 0.25))
    )

    # After the first reply at 5: 10 ms at pace 1, 40 at 2 take 20: 35. After the second at 40: 20
    # at 2 take 10: 50.
    assert sent_ms(results) == pytest.approx([0.0, 35.0, 50.0], abs=LATE_MS)
