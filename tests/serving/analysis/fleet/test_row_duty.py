from dataclasses import fields

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from serving.analysis.fleet.row_duty import RowDuty, row_duty
from tests.serving.analysis.fleet.fleets import row


def duty(out: list[int], *, hot: int, cold: int, machines: int = 10, limit: int = 10) -> RowDuty:
    """Two looks are an hour."""
    hours = -(-len(out) // 2)
    return row_duty(
        row(machines, hot=hot, cold=cold),
        np.array(out),
        np.full(hours, min(limit, machines - hot - cold)),
        looks_per_hour=2,
    )


def test_a_hot_spare_takes_over_at_once() -> None:
    found = duty([0, 1, 2, 0], hot=2, cold=0)

    assert found.working.tolist() == [8, 8, 8, 8]
    assert found.hot.tolist() == [2, 1, 0, 2]


def test_a_cold_spare_takes_over_at_the_next_full_hour() -> None:
    found = duty([0, 1, 1, 1, 0, 0], hot=0, cold=1)

    assert found.working.tolist() == [9, 8, 9, 9, 9, 9]
    assert found.off.tolist() == [1, 1, 0, 0, 1, 1]


def test_hot_spares_stand_in_until_cold_ones_are_there() -> None:
    found = duty([0, 1, 1, 1], hot=1, cold=1)

    assert found.working.tolist() == [8, 8, 8, 8]
    assert found.hot.tolist() == [1, 0, 1, 1]
    assert found.off.tolist() == [1, 1, 0, 0]


def test_more_failures_than_spares_are_missed() -> None:
    assert duty([3, 3], hot=1, cold=1).working.tolist() == [7, 7]


def test_what_a_cap_does_not_hold_is_off() -> None:
    found = duty([0, 0], hot=0, cold=0, limit=4)

    assert (found.working.tolist(), found.shed.tolist()) == ([4, 4], [6, 6])


@given(
    out=st.lists(st.integers(0, 10), min_size=1, max_size=12),
    hot=st.integers(0, 4),
    cold=st.integers(0, 4),
    limit=st.integers(1, 10),
)
def test_every_machine_has_one_duty(out: list[int], hot: int, cold: int, limit: int) -> None:
    found = duty(out, hot=hot, cold=cold, limit=limit)

    columns = [getattr(found, each.name) for each in fields(found)]
    assert all((column >= 0).all() for column in columns)
    assert (np.sum(columns, axis=0) == 10).all()
