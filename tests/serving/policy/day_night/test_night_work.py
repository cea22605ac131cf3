"""Shares of free groups: by hand, and properties of all."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.policy.day_night.night_work import (
    BatchDemand,
    NightOrder,
    NightShare,
    is_due,
    night_share,
)

FIRST, LAST, ALONE = NightOrder.BATCH_FIRST, NightOrder.TRAINING_FIRST, NightOrder.BATCH_ALONE


def shared(
    order: NightOrder, requests: int, due: int = 0, *, wanted: int = 1, held: int = 0
) -> NightShare:
    """Of four groups of 10 seats, of which `wanted` and the held ones serve."""
    serving = wanted + held
    demand = BatchDemand(requests=requests, due_requests=due, seats=10 * serving)
    return night_share(
        order, demand, groups=4, wanted_groups=wanted, serving_groups=serving, held_groups=held
    )


@pytest.mark.parametrize(
    ("share", "held"),
    [
        (shared(FIRST, 0), 0),
        (shared(FIRST, 10), 0),  # the group that serves has a seat for each
        (shared(FIRST, 11), 1),
        (shared(FIRST, 1_000), 3),
        (shared(FIRST, 5, held=3), 3),  # until the last is answered
        (shared(FIRST, 0, held=3), 0),
        (shared(LAST, 1_000), 0),
        (shared(LAST, 1_000, due=25), 2),
        (shared(ALONE, 0), 3),
    ],
)
def test_groups_are_held_for_requests_without_a_seat(share: NightShare, held: int) -> None:
    assert share.may_run
    assert share.held_groups == held


@pytest.mark.parametrize("order", NightOrder)
def test_by_day_nothing_is_held_and_what_is_not_due_waits(order: NightOrder) -> None:
    share = shared(order, 100, due=40, wanted=4, held=0)
    assert (share.may_run, share.held_groups) == (False, 0)
    assert share.words == "60 batch requests wait for the night"


@given(
    order=st.sampled_from(NightOrder),
    requests=st.integers(0, 10**6),
    due=st.integers(0, 10**6),
    seats=st.integers(0, 10**4),
    groups=st.integers(1, 36),
    wanted=st.integers(1, 36),
    serving=st.integers(0, 36),
    held=st.integers(0, 36),
)
def test_no_more_is_held_than_is_free_and_none_for_nothing(
    *,
    order: NightOrder,
    requests: int,
    due: int,
    seats: int,
    groups: int,
    wanted: int,
    serving: int,
    held: int,
) -> None:
    wanted, due = min(wanted, groups), min(due, requests)
    demand = BatchDemand(requests=requests, due_requests=due, seats=seats)
    share = night_share(
        order,
        demand,
        groups=groups,
        wanted_groups=wanted,
        serving_groups=serving,
        held_groups=held,
    )
    assert 0 <= share.held_groups <= groups - wanted
    assert share.may_run == (wanted < groups)
    if not requests and order is not ALONE:
        assert share.held_groups == 0


@pytest.mark.parametrize(
    ("left_h", "ahead", "per_s", "due"),
    [
        (23.0, 10, None, False),
        (6.0, 10, None, True),  # a quarter of its time is left, and no pace is known
        (6.0, 3_600, 1.0, False),  # an hour's work
        (2.0, 3_600, 1.0, True),  # twice that is left
        (2.0, 10, 1.0, False),
        (1.0, 10, 1.0, True),  # an hour of a day is the least
    ],
)
def test_a_batch_is_due_while_it_can_still_be_answered(
    *, left_h: float, ahead: int, per_s: float | None, due: bool
) -> None:
    assert due == is_due(
        left_s=left_h * 3_600, window_s=86_400, requests_ahead=ahead, requests_per_s=per_s
    )
