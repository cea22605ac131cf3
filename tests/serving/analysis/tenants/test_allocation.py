"""Free groups among tenants: by priority, by deadline, by value; all small cases by search."""

from functools import cache
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from emulator.errors import ConfigError
from serving.analysis.tenants.allocation import (
    AllocationTerms,
    DueWork,
    GroupClaim,
    allocate,
    divided,
    urgent,
)

LOOK_S = 300.0


def terms(*ahead: float, keep_s: float = float("inf"), look_s: float = LOOK_S) -> AllocationTerms:
    return AllocationTerms(look_s=look_s, ahead=np.array(ahead), keep_s=keep_s, uncertain_share=0.0)


def claim(
    *work: float, value: float = 1.0, priority: int = 0, groups: int = 0, **more: object
) -> GroupClaim:
    rates = np.array([0.0, *work])
    return GroupClaim(
        priority=priority,
        groups=groups,
        work_per_s=rates,
        value_per_s=value * rates,
        **more,  # type: ignore[arg-type]
    )


def test_the_higher_value_of_the_next_group_wins_group_by_group() -> None:
    falling, steady = claim(10, 15, 18, 20), claim(6, 12, 18, 24)

    # 10, then 6 against 5 each time: one to the first, the rest to the second.
    assert allocate([falling, steady], 4, terms(4)) == (1, 3)


def test_a_job_that_needs_several_groups_gets_them_together_or_none() -> None:
    large, small = claim(0, 0, 30, 40), claim(4, 8, 12, 16)

    assert allocate([large, small], 4, terms(4)) == (4, 0)
    assert allocate([large, small], 2, terms(4)) == (0, 2)


def test_groups_that_add_nothing_stay_free() -> None:
    flat = claim(10, 10, 12, 12)

    assert allocate([flat], 4, terms(4)) == (3,)
    assert allocate([flat], 2, terms(4)) == (1,)


def test_work_that_costs_more_than_it_earns_is_left() -> None:
    dear = GroupClaim(
        priority=0,
        groups=0,
        work_per_s=np.array([0.0, 1.0, 2.0]),
        value_per_s=np.array([0.0, 0.5, -1.0]),
    )

    assert allocate([dear], 2, terms(2)) == (1,)


def test_a_change_that_lasts_too_short_a_time_for_its_pause_is_not_made() -> None:
    job = claim(10, 20, 22, groups=2, pause_s=60.0)

    assert allocate([job], 3, terms(3)) == (3,)
    assert allocate([job], 3, terms(3, keep_s=3_600.0)) == (3,)  # 2 x 3600 against 22 x 60
    assert allocate([job], 3, terms(3, keep_s=600.0)) == (2,)  # 2 x 600 against the same


def test_another_tenant_takes_what_a_pausing_job_does_not_grow_into() -> None:
    job, batch = claim(10, 20, 22, groups=2, pause_s=60.0), claim(1, 2, 3)

    assert allocate([job, batch], 3, terms(3, keep_s=600.0)) == (2, 1)


def test_when_groups_go_the_least_worth_goes_first() -> None:
    first, second = claim(10, 20, 30, groups=2), claim(6, 12, 18, groups=2)

    assert allocate([first, second], 3, terms(3)) == (3, 0)
    pausing = claim(10, 20, 30, groups=2, pause_s=500.0)
    assert allocate([pausing, second], 3, terms(3, keep_s=600.0)) == (2, 1)


def test_work_is_put_off_until_the_deadline_presses() -> None:
    due = claim(1, 2, value=0.1, work_left=1_200.0, due=(DueWork(in_s=1_500.0, work=1_200.0),))
    worth_more = claim(1, 2, value=1.0)

    # 3,000 group-seconds until then, 1,200 needed: one look of 600 may pass.
    assert allocate([due, worth_more], 2, terms(2)) == (0, 2)
    # With one group foretold 1,500 are left, of which this look has 600.
    assert allocate([due, worth_more], 2, terms(1)) == (2, 0)


def test_earlier_deadlines_press_together() -> None:
    works = [
        claim(1, 2, work_left=900.0, due=(DueWork(in_s=1_200.0, work=900.0),)),
        claim(1, 2, work_left=900.0, due=(DueWork(in_s=1_000.0, work=900.0),)),
    ]

    # 2,000 group-seconds until the first, 2,400 until the second: 1,800 together leave 600.
    assert urgent(works, 2, terms(2)) == []
    assert urgent(works, 2, terms(2, 1)) == [1, 0]


def test_no_more_groups_than_finish_until_the_next_time() -> None:
    ends = claim(1, 2, 3, 4, value=9.0, work_left=450.0)

    assert allocate([ends, claim(1, 2, 3, 4)], 4, terms(4)) == (2, 2)


def test_a_job_that_is_nearly_done_does_not_pause_for_fewer_groups() -> None:
    ends = claim(1, 2, 3, 4, value=9.0, work_left=450.0, groups=3, pause_s=30.0)

    assert allocate([ends, claim(1, 2, 3, 4)], 4, terms(4)) == (3, 1)


@pytest.mark.parametrize(
    ("work", "value"), [((0.0, 2.0, 1.0), (0.0, 1.0, 1.0)), ((0.0, 1.0), (0.0, 1.0, 2.0))]
)
def test_tables_that_contradict_each_other_are_refused(
    work: tuple[float, ...], value: tuple[float, ...]
) -> None:
    with pytest.raises(ConfigError):
        GroupClaim(priority=0, groups=0, work_per_s=np.array(work), value_per_s=np.array(value))


def due_claim(work: int, deadline: int, most: int) -> GroupClaim:
    """A group does a unit in a look of a second."""
    rates = [float(min(groups, most)) for groups in range(1, 4)]
    due = (DueWork(in_s=float(deadline), work=float(work)),) if work and deadline > 0 else ()
    return claim(*rates, value=0.01, work_left=float(work), due=due)


def kept_by_search(works: tuple[int, ...], deadlines: tuple[int, ...], groups: int) -> bool:
    """Whether any plan does all in time."""

    @cache
    def can(at: int, left: tuple[int, ...]) -> bool:
        if any(work and deadline <= at for work, deadline in zip(left, deadlines, strict=True)):
            return False
        if not any(left):
            return True
        given = product(*(range(min(work, groups) + 1) for work in left))
        return any(
            can(at + 1, tuple(work - more for work, more in zip(left, each, strict=True)))
            for each in given
            if sum(each) <= groups
        )

    return can(0, works)


@pytest.mark.slow
def test_no_plan_meets_deadlines_that_the_allocation_misses() -> None:
    cases = kept = 0
    for groups, works in product((1, 2, 3), product(range(4), repeat=3)):
        for deadlines in product((1, 2, 3), repeat=3):
            if not kept_by_search(works, deadlines, groups):
                continue
            cases += 1
            left = list(works)
            for at in range(3):
                # A tenant that is worth more has what is left over.
                claims = [
                    *(
                        due_claim(work, deadline - at, groups)
                        for work, deadline in zip(left, deadlines, strict=True)
                    ),
                    claim(1, 2, 3, value=100.0),
                ]
                given = allocate(claims, groups, terms(groups, look_s=1.0))
                left = [max(0, work - more) for work, more in zip(left, given, strict=False)]
                late = [
                    work
                    for work, deadline in zip(left, deadlines, strict=True)
                    if deadline <= at + 1
                ]
                assert not any(late), (groups, works, deadlines, at)
            kept += not any(left)
    assert cases > 1_000
    assert kept == cases


CLAIMS = st.lists(
    st.builds(
        lambda rises, priority, groups, pause_s, due_s: claim(
            *np.cumsum(rises).tolist(),
            priority=priority,
            groups=groups,
            pause_s=pause_s,
            work_left=1e4 if due_s else float("inf"),
            due=(DueWork(in_s=due_s, work=1e4),) if due_s else (),
        ),
        st.lists(st.integers(0, 9).map(float), min_size=6, max_size=6),
        st.integers(0, 2),
        st.integers(0, 3),
        st.sampled_from([0.0, 40.0]),
        st.sampled_from([0.0, 600.0, 5_000.0]),
    ),
    max_size=4,
)


@given(claims=CLAIMS, free=st.integers(0, 6), keep_s=st.sampled_from([900.0, float("inf")]))
def test_no_group_is_given_twice_and_none_where_it_adds_nothing(
    claims: list[GroupClaim], free: int, keep_s: float
) -> None:
    given_groups = allocate(claims, free, terms(3, keep_s=keep_s))

    assert len(given_groups) == len(claims)
    assert sum(given_groups) <= free
    for each, groups in zip(claims, given_groups, strict=True):
        assert 0 <= groups <= each.most(LOOK_S)


@given(claims=CLAIMS, free=st.integers(0, 6))
def test_a_tenant_has_what_it_would_have_without_those_of_lower_priority(
    claims: list[GroupClaim], free: int
) -> None:
    of_all = allocate(claims, free, terms(3))
    for priority in {each.priority for each in claims}:
        upper = [each for each in claims if each.priority >= priority]
        alone = allocate(upper, free, terms(3))
        of_upper = [
            groups for each, groups in zip(claims, of_all, strict=True) if each.priority >= priority
        ]
        assert tuple(of_upper) == alone


@given(wanted=st.lists(st.integers(1, 9), min_size=1, max_size=4), groups=st.integers(4, 12))
def test_models_share_what_there_is(wanted: list[int], groups: int) -> None:
    found = divided(wanted, groups)

    assert sum(found) == min(groups, sum(wanted))
    assert all(1 <= has <= asked for has, asked in zip(found, wanted, strict=True))
    for has, asked in zip(found, wanted, strict=True):
        # None could give a group to one that is worse off by more than that group.
        assert all(
            (other - 1) / of <= has / asked or has == asked or other == 1
            for other, of in zip(found, wanted, strict=True)
        )


def test_more_models_than_groups_are_refused() -> None:
    with pytest.raises(ConfigError, match="models"):
        divided([1, 1, 1], 2)
