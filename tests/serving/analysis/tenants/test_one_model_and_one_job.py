"""A fleet of one model and one job is the machine of `ultraserve day`."""

from dataclasses import dataclass, fields

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from serving.analysis.day.day_demand import WalkTerms
from serving.analysis.day.day_walk import walk
from serving.analysis.day.leased_groups import GroupTimes, HandoverTotals
from serving.analysis.day.training_yield import GroupHandover
from serving.analysis.tenants.claims import Worth
from serving.analysis.tenants.fleet_walk import FleetModel, FleetWalk, NightFleet, walk_fleet
from serving.analysis.tenants.tenant import TrainingTenant
from serving.policy.day_night.observation import Observation
from serving.policy.day_night.policy import Decision, Policy
from tests.serving.analysis.day.days import CURVE, HANDOVER, MONDAY, demand, outcomes, trained

pytestmark = pytest.mark.long

GROUPS = 5
TERMS = WalkTerms(interval_s=20.0, look_s=100.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scripted(Policy):
    """A serving number for each look, kept for so many seconds after a change."""

    name = "scripted"

    numbers: tuple[int, ...]
    dwell_s: float

    def decide(self, observed: Observation) -> Decision:
        look = round((observed.now_s - MONDAY.timestamp()) / TERMS.look_s)
        if observed.since_change_s < self.dwell_s + observed.restore_s:
            return Decision(serving_groups=observed.serving_groups, reason="as before")
        return Decision(serving_groups=self.numbers[look], reason="as written")

    def describe(self) -> str:
        return "scripted"


def fleet_walk(
    policy: Policy, arrivals: list[int], least: int, handover: GroupHandover
) -> FleetWalk:
    job = TrainingTenant(name="job", priority=0, weight=1.0, trained=trained(GROUPS, least=least))
    return walk_fleet(
        NightFleet(
            groups=GROUPS,
            group_idle_watts=CURVE.idle_watts,
            models=(
                FleetModel(
                    name="served",
                    demand=demand(*arrivals, interval_s=TERMS.interval_s),
                    curve=CURVE,
                    handover=handover,
                    policy=policy,
                ),
            ),
            tenants=(job,),
            worth=Worth(),
            terms=TERMS,
            keep_s=float("inf"),
        )
    )


@given(
    numbers=st.lists(st.integers(1, GROUPS), min_size=1, max_size=12),
    load=st.integers(0, 300),
    least=st.integers(1, 4),
    drain_s=st.sampled_from([0.0, 7.0, 30.0, 150.0]),
    restore_s=st.sampled_from([1.0, 60.0, 130.0]),
    dwell_s=st.sampled_from([-200.0, 0.0, 150.0]),
)
@settings(max_examples=150, deadline=None)
@pytest.mark.slow
def test_a_fleet_of_one_model_and_one_job_is_the_machine_of_a_day(
    numbers: list[int], load: int, least: int, drain_s: float, restore_s: float, dwell_s: float
) -> None:
    handover = GroupHandover(
        drain_s=drain_s,
        restore_s=restore_s,
        restore_joules=HANDOVER.restore_joules,
        moved_requests_per_rate_s=2.0,
    )
    arrivals = [load + 10 * (at % 3) for at in range(5 * len(numbers) - 2)]
    policy = Scripted(numbers=tuple(numbers), dwell_s=dwell_s)
    alone = walk(
        demand(*arrivals, interval_s=TERMS.interval_s),
        CURVE,
        outcomes(trained(GROUPS, least=least), TERMS, handover),
        policy,
    )
    fleet = fleet_walk(policy, arrivals, least, handover)

    (model,) = fleet.models
    assert model.wanted == alone.wanted
    for name in ("served", "backlog", "late", "group_rates", "moved"):
        assert getattr(model, name) == pytest.approx(getattr(alone, name)), name
    for at, (whole, own) in enumerate(zip(alone.times, model.times, strict=True)):
        parts = [own, *(times[at] for times in fleet.times)]
        for name in (each.name for each in fields(GroupTimes) if each.name != "parts"):
            found = sum(getattr(part, name) for part in parts)
            assert found == pytest.approx(getattr(whole, name), abs=1e-6), (at, name)
        assert np.array(own.parts) == pytest.approx(np.array(whole.parts), abs=1e-6), at
    for name in (each.name for each in fields(HandoverTotals)):
        found = getattr(model.totals, name) + getattr(fleet.pools[0].totals, name)
        if name == "came_back":  # a tenant counts the groups that it gave back
            found = model.totals.came_back
        assert found == pytest.approx(getattr(alone.totals, name)), name
