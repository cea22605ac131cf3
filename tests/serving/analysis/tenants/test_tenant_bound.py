"""The bound of a night: no allocation of the groups that models leave is worth more."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from serving.analysis.day.exact_day import Planned
from serving.analysis.tenants.claims import Worth, WorthUnit
from serving.analysis.tenants.fleet_walk import FleetWalk, walk_fleet
from serving.analysis.tenants.tenant import Submission, Tenant
from serving.analysis.tenants.tenant_accounts import TenantAccount
from serving.analysis.tenants.tenant_bound import tenant_bound
from serving.policy.day_night.policy import Fixed
from tests.serving.analysis.day.days import trained
from tests.serving.analysis.tenants.fleets import IDLE_WATTS, batch, elastic, job
from tests.serving.analysis.tenants.test_fleet_walk import GROUPS, MONDAY, day, model, night

pytestmark = pytest.mark.long


def value(walk: FleetWalk) -> float:
    """Of all tenants, as a report has it."""
    worth = walk.fleet.worth
    accounts = (
        TenantAccount(
            pool=pool,
            times=times,
            weight_value=worth.of_token(pool.tenant.weight),
            joule_value=worth.of_joule,
            group_idle_watts=IDLE_WATTS,
            end_s=walk.models[0].demand.length_s,
        )
        for pool, times in zip(walk.pools, walk.times, strict=False)
    )
    return sum(each.value for each in accounts)


def still(*tenants: Tenant, serving: int = 3) -> FleetWalk:
    """A model on so many of the eight groups all day."""
    return night(*tenants, models=(model("a", day(3.0, peak_h=6), Fixed(serving_groups=serving)),))


def test_one_job_on_groups_that_are_always_free_starts_once() -> None:
    walk = still(job(GROUPS))
    # 5 groups train 10 tokens/s each, but for one start of 20 s, of which shares of looks may save
    # a little.
    most = 86_400 * 5 * 10.0
    assert most - 20 * 50 <= tenant_bound(walk) <= most - 0.9 * 20 * 50
    assert 0.99 * most < value(walk) <= tenant_bound(walk)


def test_work_that_has_an_end_and_has_not_come_yet_is_no_worth() -> None:
    late = Submission(at_s=86_400 - 600.0, requests=1e6, due_s=86_400.0)
    walk = still(job(GROUPS, tokens=5_000.0), batch(GROUPS, late))
    # 5,000 tokens, and for 10 minutes 5 groups by 2 requests/s of 5 tokens.
    assert tenant_bound(walk) == pytest.approx(5_000 + 600 * 5 * 2 * 5, rel=1e-5)
    assert value(walk) <= tenant_bound(walk)
    assert tenant_bound(still()) == 0.0
    assert tenant_bound(still(job(GROUPS), serving=GROUPS)) == pytest.approx(0.0, abs=1e-9)


def any_tenant(chance: np.random.Generator, number: int) -> Tenant:
    fields: dict[str, Any] = {"name": f"{number}", "priority": int(chance.integers(3))}
    weight = float(chance.choice([0.1, 1.0, 5.0]))
    if chance.random() < 0.4:
        at = np.sort(chance.uniform(0, 20_000, 2))
        parts = [
            Submission(at_s=float(a), requests=float(chance.uniform(100, 2e4)), due_s=float(a) + d)
            for a, d in zip(at, (3_000.0, 5_000.0), strict=True)
        ]
        parts.sort(key=lambda each: each.due_s)
        return batch(
            GROUPS, *parts, weight=weight, groups_most=int(chance.integers(2, 9)), **fields
        )
    least = int(chance.integers(1, 5))
    works = np.arange(GROUPS + 1) >= least
    yields = replace(
        trained(GROUPS, least=least),
        start_s=np.where(works, chance.uniform(0, 700), 0.0),
        save_s=np.where(works, chance.uniform(0, 90), 0.0),
    )
    tokens = float(chance.uniform(1e4, 1e6)) if chance.random() < 0.5 else None
    moved = elastic(GROUPS, least=least) if chance.random() < 0.5 else None
    return job(GROUPS, trained=yields, weight=weight, tokens=tokens, resharding=moved, **fields)


def planned(chance: np.random.Generator, most: int) -> Planned:
    """Groups for half an hour each, whatever tenants do."""
    looks = np.repeat(chance.integers(1, most + 1, 12), 6)
    return Planned(begins_s=MONDAY.timestamp(), look_s=300.0, serving=tuple(looks.tolist()))


@settings(max_examples=6, deadline=None)
@given(seed=st.integers(0, 2**32))
@pytest.mark.slow
def test_no_allocation_of_the_same_groups_is_worth_more(seed: int) -> None:
    chance = np.random.default_rng(seed)
    tenants = [any_tenant(chance, number) for number in range(int(chance.integers(1, 4)))]
    unit = list(WorthUnit)[int(chance.integers(3))]
    whole = day(3.0, peak_h=3)
    morning = replace(whole, arrivals=whole.arrivals[: 6 * 60])
    models = tuple(model(name, morning, planned(chance, GROUPS // 2)) for name in ("a", "b"))
    walk = night(*tenants, models=models, worth=Worth(unit=unit, kwh_dollars=0.1))
    bound = tenant_bound(walk)
    walks = [walk, *(walk_fleet(replace(walk.fleet, keep_s=keep_s)) for keep_s in (60.0, 7_200.0))]
    turned = tuple(replace(each, priority=3 - each.priority) for each in walk.fleet.tenants)
    walks.append(walk_fleet(replace(walk.fleet, tenants=turned)))
    for each in walks:
        assert [of.wanted for of in each.models] == [of.wanted for of in walk.models]
        assert value(each) <= bound + 1e-9
