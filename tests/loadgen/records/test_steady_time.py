"""Stamps as one dilation would have made them: durations over epochs are emulated time."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.records.steady_time import ClockEpoch, SteadyTime, steady_results
from tests.loadgen.records.test_results_file import result

S = 1_000_000_000


def epochs(*changes: tuple[float, float], first: float = 4.0) -> list[ClockEpoch]:
    """A clock that began 10 wall s before the run, and changed at such wall seconds after."""
    found = [ClockEpoch(epoch=3, from_wall_ns=-10 * S, from_emulated_s=7.0, dilation=first)]
    for number, (at_s, dilation) in enumerate(changes, start=4):
        last = found[-1]
        passed_s = (round(at_s * S) - last.from_wall_ns) / S / last.dilation
        found.append(
            ClockEpoch(
                epoch=number,
                from_wall_ns=round(at_s * S),
                from_emulated_s=last.from_emulated_s + passed_s,
                dilation=dilation,
            )
        )
    return found


def test_steady_time_by_hand() -> None:
    steady = SteadyTime(epochs((2.0, 1.0), (3.0, 8.0)), 4.0)

    # 2 s at 4, one at 1 which is worth 4, then 8 wall s are one of 8, worth 4.
    wall_s = np.array([0.0, 1.0, 2.0, 2.5, 3.0, 11.0])
    assert steady.of((wall_s * S).astype(np.int64)).tolist() == [
        *(0, 1 * S, 2 * S, 4 * S, 6 * S, 10 * S)
    ]
    assert steady.wall_ns(np.array([0, 1, 2, 4, 6, 10]) * S).tolist() == [
        round(each * S) for each in wall_s
    ]
    assert steady.of(np.array([-4 * S])).tolist() == [-4 * S]


def test_of_an_epoch_that_was_not_heard_of_the_mean_counts() -> None:
    all_of_them = epochs((2.0, 1.0), (4.0, 2.0), (6.0, 8.0))
    missing = SteadyTime([*all_of_them[:2], all_of_them[3]], 4.0)
    known = SteadyTime(all_of_them, 4.0)

    at = np.array([0, 1, 2, 6, 7], dtype=np.int64) * S
    assert missing.of(at).tolist() == known.of(at).tolist()


WALLS = st.lists(st.integers(-20 * S, 100 * S), min_size=2, max_size=30)
CHANGES = st.lists(st.tuples(st.integers(1, 10**10), st.floats(0.5, 2_000.0)), max_size=8)


@given(changes=CHANGES, walls=WALLS, first=st.floats(0.5, 2_000.0))
def test_it_never_falls_and_a_duration_is_the_epochs_emulated_time(
    changes: list[tuple[int, float]], walls: list[int], first: float
) -> None:
    at_s, planned = 0.0, []
    for after_ns, dilation in changes:
        at_s += after_ns / S
        planned.append((at_s, dilation))
    clock = epochs(*planned, first=first)

    ordered = np.array(sorted(walls), dtype=np.int64)
    steady = SteadyTime(clock, first).of(ordered)

    assert np.all(np.diff(steady) >= 0)
    begins = [each.from_wall_ns for each in clock]
    slowest = 0.0
    for begin, end in ((int(ordered[0]), int(ordered[-1])),):
        for each, until in zip(clock, [*begins[1:], 10**18], strict=True):
            low = begin if each is clock[0] else max(begin, each.from_wall_ns)
            slowest += max(0, min(end, until) - low) / each.dilation
    assert (steady[-1] - steady[0]) / first == pytest.approx(slowest, rel=1e-6, abs=2_000)


def test_results_of_one_dilation_are_left_as_they_are() -> None:
    some = [result(1, [7, 9])]
    assert steady_results(some, epochs(), 4.0) is some
    assert steady_results(some, [], 4.0) is some
    assert steady_results(some, epochs((1.0, 2.0)), None) is some


def test_each_stamp_of_a_result_is_converted() -> None:
    one = replace(
        result(1, [7, 9]),
        intended_ns=1 * S,
        sent_ns=2 * S,
        chunk_ns=np.array([3 * S, 4 * S]),
        ended_ns=5 * S,
    )
    (found,) = steady_results([one], epochs((2.0, 1.0)), 4.0)

    assert (found.intended_ns, found.sent_ns, found.ended_ns) == (1 * S, 2 * S, 14 * S)
    assert found.chunk_ns.tolist() == [6 * S, 10 * S]
    assert found.request_id == one.request_id
