"""Fleets walked over days: conservation, deadlines, and what one model's day does to another's."""

from dataclasses import replace
from datetime import UTC, datetime

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from serving.analysis.day.day_demand import DayDemand, WalkTerms
from serving.analysis.tenants.batch_pool import BatchPool
from serving.analysis.tenants.claims import Worth, WorthUnit, claim_of
from serving.analysis.tenants.fleet_walk import (
    FleetModel,
    FleetWalk,
    NightFleet,
    first_groups,
    walk_fleet,
)
from serving.analysis.tenants.job_pool import JobPool
from serving.analysis.tenants.tenant import Submission, Tenant
from serving.policy.day_night.demand import DemandPolicy
from serving.policy.day_night.history import DemandHistory
from serving.policy.day_night.policy import Fixed, Policy
from tests.serving.analysis.day.days import CURVE, HANDOVER
from tests.serving.analysis.tenants.fleets import IDLE_WATTS, SLOWER, batch, elastic, job, job_pool

TERMS = WalkTerms(interval_s=60.0, look_s=300.0)
HOURS = 24
GROUPS = 8
MONDAY = datetime(2024, 1, 1, tzinfo=UTC)


def day(peak_per_s: float, *, peak_h: float) -> DayDemand:
    """A cosine over the day, 10 from trough to peak; the day before was the same."""
    middles_h = (np.arange(HOURS * 60) + 0.5) / 60
    share = 0.1 + 0.9 * (1 + np.cos((middles_h - peak_h) / 24 * 2 * np.pi)) / 2
    rates = peak_per_s * share
    return DayDemand(
        begins=MONDAY,
        interval_s=60.0,
        arrivals=np.rint(rates * 60).astype(np.int64),
        past=DemandHistory(
            end_s=MONDAY.timestamp(),
            bucket_s=300.0,
            requests_per_s=rates.reshape(-1, 5).mean(axis=1),
        ),
    )


def model(name: str, demand: DayDemand, policy: Policy | None = None) -> FleetModel:
    return FleetModel(
        name=name,
        demand=demand,
        curve=CURVE,
        handover=HANDOVER if name == "a" else SLOWER,
        policy=policy or DemandPolicy(),
    )


def night(
    *tenants: Tenant, models: tuple[FleetModel, ...], worth: Worth | None = None
) -> FleetWalk:
    return walk_fleet(
        NightFleet(
            groups=GROUPS,
            group_idle_watts=IDLE_WATTS,
            models=models,
            tenants=tenants,
            worth=worth or Worth(),
            terms=TERMS,
        )
    )


def two_models() -> tuple[FleetModel, ...]:
    """Peaks of six groups each, twelve hours apart, on eight groups."""
    return model("a", day(10.0, peak_h=6)), model("b", day(10.0, peak_h=18))


def group_hours(walk: FleetWalk) -> float:
    names = ("serving_s", "leaving_s", "restoring_s", "paused_s", "training_s", "idle_s")
    every = (*(each.times for each in walk.models), *walk.times)
    seconds = sum(getattr(each, name) for times in every for each in times for name in names)
    return float(seconds) / 3_600


@pytest.mark.long
def test_groups_follow_the_models_that_need_them() -> None:
    walked = night(models=two_models())
    serving = [each.column("serving_s") / 60 for each in walked.models]

    for own, other, peak_h in ((0, 1, 6), (1, 0, 18)):
        at = slice(peak_h * 60 - 30, peak_h * 60 + 30)
        assert serving[own][at].min() >= 5
        assert serving[other][at].max() <= 2
    for each in walked.models:
        assert each.totals.left >= 3
        assert each.totals.came_back >= 3
        assert each.backlog.max() == 0
    assert group_hours(walked) == pytest.approx(GROUPS * HOURS)


@pytest.mark.long
def test_models_that_ask_for_more_than_there_is_share_it() -> None:
    everything = Fixed(serving_groups=GROUPS)
    walked = night(
        job(GROUPS),
        models=(
            model("a", day(10.0, peak_h=6), everything),
            model("b", day(10.0, peak_h=6), everything),
        ),
    )

    assert walked.wanted[-1] == (GROUPS, GROUPS)
    assert walked.models[0].wanted[-1] == walked.models[1].wanted[-1] == GROUPS // 2
    assert walked.given[-1] == (0,)


def test_first_groups_go_by_the_first_demand() -> None:
    assert first_groups(two_models(), 8) == (4, 4)
    busy = model("a", day(10.0, peak_h=0)), model("b", day(1.0, peak_h=0))
    assert first_groups(busy, 8) == (7, 1)


@pytest.mark.long
def test_a_deadline_comes_before_what_is_worth_more_when_it_presses() -> None:
    rich = job(GROUPS, name="rich", weight=100.0)
    # 5 groups of 10 tokens/s for 4 hours.
    due = job(GROUPS, name="due", least=1, tokens=50.0 * 4 * 3_600, deadline_s=10 * 3_600.0)
    alone = (model("a", day(2.0, peak_h=14)),)
    walked = night(rich, due, models=alone)
    late = night(rich, replace(due, deadline_s=None), models=alone)

    first, second = walked.pools
    assert isinstance(second, JobPool)
    assert second.finished_s is not None
    assert 4 * 3_600 < second.finished_s <= 10 * 3_600
    assert walked.given[0][0] > walked.given[0][1]  # it can wait at first
    assert isinstance(late.pools[1], JobPool)
    assert late.pools[1].finished_s is None
    assert isinstance(first, JobPool)
    assert isinstance(late.pools[0], JobPool)
    assert first.trained < late.pools[0].trained


@pytest.mark.long
def test_batch_work_is_in_time_if_the_night_has_room_for_it() -> None:
    # 8 requests/s of four groups for 3 hours, among 24.
    requests = Submission(at_s=3_600.0, requests=8.0 * 3 * 3_600, due_s=20 * 3_600.0)
    walked = night(
        job(GROUPS, weight=5.0), batch(GROUPS, requests), models=(model("a", day(6.0, peak_h=14)),)
    )
    own = walked.pools[1]
    assert isinstance(own, BatchPool)

    assert own.in_time == [pytest.approx(requests.requests)]
    assert own.done_s[0] is not None
    assert own.done_s[0] > 3_600


@pytest.mark.long
def test_joules_of_a_worthless_night_are_those_of_idle_groups() -> None:
    # A token is worth 1 J and takes 20 J beyond an idle group.
    worth = Worth(unit=WorthUnit.JOULES)
    idle = night(job(GROUPS), models=(model("a", day(6.0, peak_h=14)),), worth=worth)
    works = night(job(GROUPS, weight=21.0), models=(model("a", day(6.0, peak_h=14)),), worth=worth)

    assert sum(each.training_s for each in idle.times[0]) == 0
    idle_s = sum(each.idle_s for each in idle.times[1])
    assert idle_s > 0
    assert sum(each.joules for each in idle.times[1]) == pytest.approx(idle_s * IDLE_WATTS)
    assert sum(each.training_s for each in works.times[0]) > 0


@pytest.mark.parametrize(
    ("worth", "expected"),
    [
        (Worth(), 2.0 * 30),
        (Worth(unit=WorthUnit.JOULES), 2.0 * 30 - 3 * 200),
        (Worth(unit=WorthUnit.USD, kwh_dollars=0.36), 2e-6 * 30 - 1e-7 * 3 * 200),
    ],
)
def test_the_value_of_three_groups_by_hand(worth: Worth, expected: float) -> None:
    # Three groups train 30 tokens/s at 300 W each, of which 100 W are drawn idle.
    found = claim_of(
        job_pool(job(weight=2.0)), worth, groups=0, group_idle_watts=IDLE_WATTS, now_s=0.0
    )

    assert found.value_per_s[3] == pytest.approx(expected)
    assert found.value_per_s[1] == 0  # too few to train


@given(
    peaks=st.tuples(st.floats(0.5, 14.0), st.floats(0.5, 14.0)),
    priorities=st.tuples(st.integers(0, 1), st.integers(0, 1), st.integers(0, 1)),
    weight=st.floats(0.1, 10.0),
    tokens=st.sampled_from([None, 1e5, 5e6]),
)
@settings(max_examples=6, deadline=None)
@pytest.mark.slow
def test_group_seconds_and_work_are_conserved_over_any_day(
    peaks: tuple[float, float],
    priorities: tuple[int, int, int],
    weight: float,
    tokens: float | None,
) -> None:
    requests = (
        Submission(at_s=0.0, requests=5e4, due_s=8 * 3_600.0),
        Submission(at_s=8 * 3_600.0, requests=5e4, due_s=16 * 3_600.0),
    )
    walked = night(
        job(GROUPS, name="one", priority=priorities[0], resharding=elastic(GROUPS)),
        job(GROUPS, name="two", priority=priorities[1], weight=weight, tokens=tokens),
        batch(GROUPS, *requests, priority=priorities[2], weight=weight),
        models=(model("a", day(peaks[0], peak_h=6)), model("b", day(peaks[1], peak_h=15))),
    )

    assert group_hours(walked) == pytest.approx(GROUPS * HOURS)
    for each in walked.models:
        assert each.served.sum() + each.backlog[-1] == pytest.approx(each.demand.arrivals.sum())
    for own, times in zip(walked.pools, walked.times, strict=False):
        done = sum(of.tokens for of in times) - own.totals.tokens_undone
        if isinstance(own, JobPool):
            assert own.trained == pytest.approx(done)
            if own.tenant.tokens is not None:
                assert own.trained <= own.tenant.tokens * (1 + 1e-6)
        else:
            assert 1e5 - sum(own.left) == pytest.approx(done / 5, abs=1e-3)
    for asked, given_groups in zip(walked.wanted, walked.given, strict=True):
        assert sum(given_groups) <= GROUPS - min(GROUPS, max(asked))
