"""A stretch whose serving groups and arrivals are given: walked, and exact beside it."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final

import numpy as np

from serving.analysis.day.day_demand import DayDemand, Int64s
from serving.analysis.day.day_result import DayResult
from serving.analysis.day.day_walk import walk
from serving.analysis.day.exact_day import ExactTerms, Planned
from serving.analysis.day.held_day import HeldDay, held_stretch
from serving.analysis.day.look_outcomes import LookOutcomes
from serving.analysis.day.virtual_day import DaySettings, WalkableMachine
from serving.policy.day_night.history import DemandHistory

BEGINS: Final = datetime(2024, 5, 10, tzinfo=UTC)


def held_plan(
    settings: DaySettings,
    walkable: WalkableMachine,
    *,
    serving: Sequence[int],
    arrivals: Int64s,
    first: int,
    looks: int,
    seed: int,
) -> HeldDay:
    """Judge `looks` looks from `first` on, of groups that serve at each look, [looks], and requests
    that come in each interval, [intervals].
    """
    machine, terms = walkable.machine, settings.question.terms
    begins_s = BEGINS.timestamp()
    demand = DayDemand(
        begins=BEGINS,
        interval_s=terms.interval_s,
        arrivals=arrivals,
        past=DemandHistory(end_s=begins_s, bucket_s=terms.look_s, requests_per_s=np.zeros(0)),
    )
    outcomes = LookOutcomes(
        trained=machine.trained,
        handover=walkable.handover,
        group_idle_watts=machine.curve.idle_watts,
        interval_s=terms.interval_s,
        look_s=terms.look_s,
    )
    plan = Planned(begins_s=begins_s, look_s=terms.look_s, serving=tuple(serving))
    result = DayResult(
        machine=machine,
        walk=walk(demand, machine.curve, outcomes, plan),
        policy=plan.name,
        describes=plan.describe(),
    )
    exact = ExactTerms(
        groups=machine.groups,
        look_s=terms.look_s,
        grace_s=settings.grace_s,
        job=settings.job,
        handover=walkable.handover,
        capacity_per_s=machine.curve.least_capacity_per_s,
        seed=seed,
    )
    return held_stretch(
        result,
        walkable.replica,
        exact,
        begin_s=first * terms.look_s,
        length_s=looks * terms.look_s,
    )
