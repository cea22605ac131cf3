import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.records.sweep_record import Axis
from loadgen.sweeps.limit_search import Bracket, LimitSearch, Standing

KEPT = Standing(verdict="kept", seems_kept=True, may_repeat=True)
MISSED = Standing(verdict="missed", seems_kept=False, may_repeat=True)
LIKELY = Standing(verdict="undecided", seems_kept=True, may_repeat=True)
UNLIKELY = Standing(verdict="undecided", seems_kept=False, may_repeat=True)
GIVEN_UP = Standing(verdict="undecided", seems_kept=True, may_repeat=False)


def search(axis: Axis = "rate", precision: float = 0.05) -> LimitSearch:
    return LimitSearch(axis=axis, lowest=1, precision=precision)


def test_it_halves_the_ratio_between_what_is_kept_and_what_is_not() -> None:
    assert search().next_load({2: KEPT, 4: KEPT, 16: MISSED}) == 8


def test_whole_numbers_end_beside_each_other() -> None:
    assert search("concurrency").next_load({4: KEPT, 7: MISSED}) == 5
    assert search("concurrency").next_load({6: KEPT, 7: MISSED}) is None


def test_it_closes_in_first_and_makes_sure_then_from_below() -> None:
    assert search().next_load({2: LIKELY, 8: UNLIKELY}) == 4
    assert search().next_load({4: LIKELY, 4.1: UNLIKELY}) == 4
    assert search().next_load({4: KEPT, 4.1: UNLIKELY}) == 4.1
    assert search().next_load({4: KEPT, 4.1: GIVEN_UP}) is None


def test_what_stays_undecided_does_not_count_as_kept_and_the_search_goes_on_below() -> None:
    standings = {2: KEPT, 4: GIVEN_UP, 4.1: MISSED}

    assert search().next_load(standings) == pytest.approx(math.sqrt(8), rel=1e-3)
    assert search().bracket(standings) == Bracket(kept=2, above=4)


def test_loads_below_one_that_was_kept_are_not_measured_again() -> None:
    assert search().next_load({1: LIKELY, 2: GIVEN_UP, 4: KEPT, 4.1: MISSED}) is None
    assert search().bracket({1: LIKELY, 2: GIVEN_UP, 4: KEPT}) == Bracket(kept=4, above=None)


def test_of_a_load_kept_above_one_that_was_missed_the_lower_counts() -> None:
    assert search().bracket({1: KEPT, 2: MISSED, 3: KEPT}) == Bracket(kept=1, above=2)


def test_where_all_is_kept_only_the_highest_is_made_sure_of() -> None:
    assert search().next_load({1: LIKELY, 2: LIKELY}) == 2
    assert search().next_load({1: LIKELY, 2: KEPT}) is None


def test_where_nothing_is_kept_it_goes_down_but_not_for_ever() -> None:
    assert search().next_load({1: MISSED}) == 0.5
    assert search().next_load({1 / 64: MISSED, 1: MISSED}) is None
    assert search("concurrency").next_load({3: MISSED}) == 1
    assert search("concurrency").next_load({1: MISSED}) is None


def test_a_precision_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="precision"):
        search(precision=0)


@given(
    limit=st.floats(0.02, 2_000),
    precision=st.floats(0.01, 0.5),
    unsure=st.integers(0, 3),
    axis=st.sampled_from(["rate", "concurrency"]),
)
def test_it_finds_any_limit_to_within_the_precision_and_ends(
    limit: float, precision: float, unsure: int, axis: Axis
) -> None:
    """Each load stays undecided, leaning the right way, for `unsure` runs."""
    looks: dict[float, int] = {}
    standings: dict[float, Standing] = {}

    def run(load: float) -> None:
        looks[load] = looks.get(load, 0) + 1
        if looks[load] > unsure:
            standings[load] = KEPT if load <= limit else MISSED
        else:
            standings[load] = LIKELY if load <= limit else UNLIKELY

    grid = [1.0, 8.0, 64.0, 512.0]
    for load in grid:
        run(load)
    one = search(axis, precision)
    for _ in range(100):
        load = one.next_load(standings)
        if load is None:
            break
        run(load)
    found = one.bracket(standings)

    assert one.next_load(standings) is None
    if limit >= 512:
        assert found == Bracket(kept=512, above=None)
    elif found.kept is None:
        assert limit < (1 if axis == "concurrency" else 1 / 32)
    else:
        assert found.above is not None
        assert found.kept <= limit < found.above
        beside = axis == "concurrency" and found.above - found.kept == 1
        # Loads are written with four digits, so they stand that far apart at least.
        assert beside or found.above <= found.kept * (1 + precision) * 1.001
