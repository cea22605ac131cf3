"""A fleet walked over days: each model's demand by its policy, the night's tenants by allocation.

Every model is walked as a machine with one model is (`day_walk`), all look by look together, since
a group that one has no other has.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import ceil
from typing import Final

import numpy as np

from emulator.arrays import Float64s
from serving.analysis.day.day_demand import DayDemand, WalkTerms
from serving.analysis.day.day_trace import DAY_S
from serving.analysis.day.day_walk import DayWalk, Observer, WalkUnderWay
from serving.analysis.day.leased_groups import GroupTimes, HandoverTotals
from serving.analysis.day.look_outcomes import GroupsLeft, LookOutcome
from serving.analysis.day.replica_curve import ReplicaCurve
from serving.analysis.day.training_yield import GroupHandover
from serving.analysis.tenants.allocation import KEEP_S, AllocationTerms, allocate, divided
from serving.analysis.tenants.assignment import assigned, places
from serving.analysis.tenants.batch_pool import BatchPool
from serving.analysis.tenants.claims import Worth, claim_of
from serving.analysis.tenants.fleet_groups import FleetGroups, FleetTimes
from serving.analysis.tenants.job_pool import JobPool
from serving.analysis.tenants.tenant import Tenant, TrainingTenant
from serving.policy.day_night.policy import Policy

_SAME_S: Final = 1e-6
_HEADROOM: Final = 0.03
"""Assumed: of the demand of the day before, on top of it, where free groups are foretold."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FleetModel:
    """A served model: its day on its groups, and who decides how many."""

    name: str
    demand: DayDemand
    curve: ReplicaCurve
    handover: GroupHandover
    policy: Policy


@dataclass(frozen=True, slots=True, kw_only=True)
class NightFleet:
    """Groups, the models that they serve, and the tenants of those that are left."""

    groups: int
    group_idle_watts: float
    models: tuple[FleetModel, ...]
    tenants: tuple[Tenant, ...]
    worth: Worth
    terms: WalkTerms
    keep_s: float = KEEP_S


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FleetWalk:
    """What came of it.

    Attributes:
        models: as of machines with one model each, with the times of its own groups.
        pools: of the tenants, as the days ended.
        times: of the tenants and of idle groups, [tenants + 1] of [intervals].
        given: groups of each tenant at each look, [looks] of [tenants].
        wanted: groups that each model's policy asked for at each look, [looks] of [models].
    """

    fleet: NightFleet
    models: tuple[DayWalk, ...]
    pools: tuple[JobPool | BatchPool, ...]
    times: tuple[tuple[GroupTimes, ...], ...]
    given: tuple[tuple[int, ...], ...]
    wanted: tuple[tuple[int, ...], ...]


@dataclass(slots=True, kw_only=True)
class _ModelOutcomes:
    """One model's groups of a fleet, as a walk sees them; `next` is put in before each look."""

    handover: GroupHandover
    interval_s: float
    look_intervals: int
    job_groups_min: int  # of which another model or a tenant has a use
    fleet: FleetGroups
    model: int
    next: LookOutcome | None = None

    @property
    def groups(self) -> int:
        """That can serve it."""
        return self.fleet.groups

    def serving_or_coming(self, state: int) -> int:
        """Groups that serve it or return to it."""
        del state
        return self.fleet.serving_or_coming(self.model)

    def save_s(self, state: int) -> float:
        """Of the slowest job that has groups."""
        del state
        return max(pool.save_s for pool in self.fleet.pools)

    def outcome(self, state: int, serving: int, intervals: int) -> LookOutcome:
        """What was found for all models at once."""
        del state, serving, intervals
        assert self.next is not None
        found, self.next = self.next, None
        return found


def walk_fleet(fleet: NightFleet) -> FleetWalk:
    """From groups divided by the models' first demand, with empty queues and no tenant."""
    return _FleetWalk(fleet).run()


def _fewest_of_use(fleet: NightFleet) -> int:
    """Fewest free groups of which another model or a tenant has a use; more than there are where
    none has.
    """
    if len(fleet.models) > 1:
        return 1
    works = [np.flatnonzero(tenant.work_per_s) for tenant in fleet.tenants]
    return min((int(groups[0]) for groups in works if len(groups)), default=fleet.groups + 1)


def first_groups(models: Sequence[FleetModel], groups: int) -> tuple[int, ...]:
    """All groups, by what each model's first interval asks for."""
    loads = [float(of.demand.arrivals[0]) / of.curve.capacity_per_s for of in models]
    loads = [max(load, 1e-9) for load in loads]
    given = [1] * len(models)
    for _ in range(groups - len(models)):
        given[min(range(len(given)), key=lambda n: given[n] / loads[n])] += 1
    return tuple(given)


@dataclass(slots=True)
class _FleetWalk:
    fleet: NightFleet
    groups: FleetGroups = field(init=False)
    pools: tuple[JobPool | BatchPool, ...] = field(init=False)
    outcomes: list[_ModelOutcomes] = field(init=False)
    walks: list[WalkUnderWay] = field(init=False)
    observers: list[Observer] = field(init=False)
    granted: tuple[int, ...] = field(init=False)
    given: list[tuple[int, ...]] = field(default_factory=list)
    wanted: list[tuple[int, ...]] = field(default_factory=list)
    times: list[tuple[GroupTimes, ...]] = field(default_factory=list)

    def __post_init__(self) -> None:
        fleet, terms = self.fleet, self.fleet.terms
        self.pools = tuple(
            _pool(tenant, groups=fleet.groups, group_idle_watts=fleet.group_idle_watts)
            for tenant in fleet.tenants
        )
        self.granted = first_groups(fleet.models, fleet.groups)
        self.groups = FleetGroups(
            models=[of.handover for of in fleet.models],
            tenants=self.pools,
            first=[model for model, count in enumerate(self.granted) for _ in range(count)],
            group_idle_watts=fleet.group_idle_watts,
        )
        self.outcomes = [
            _ModelOutcomes(
                handover=of.handover,
                interval_s=terms.interval_s,
                look_intervals=terms.look_intervals,
                job_groups_min=_fewest_of_use(fleet),
                fleet=self.groups,
                model=number,
            )
            for number, of in enumerate(fleet.models)
        ]
        self.walks = [
            WalkUnderWay(of.demand, of.curve, outcomes)
            for of, outcomes in zip(fleet.models, self.outcomes, strict=True)
        ]
        self.observers = [
            Observer(walk, of.curve, of.policy)
            for walk, of in zip(self.walks, fleet.models, strict=True)
        ]

    def run(self) -> FleetWalk:
        for look in range(self.walks[0].looks):
            self._look(look)
        return FleetWalk(
            fleet=self.fleet,
            models=tuple(walk.ended() for walk in self.walks),
            pools=self.pools,
            times=tuple(zip(*self.times, strict=True)),
            given=tuple(self.given),
            wanted=tuple(self.wanted),
        )

    def _look(self, look: int) -> None:
        asked = tuple(
            walk.ask(look, observer.choose)
            for walk, observer in zip(self.walks, self.observers, strict=True)
        )
        serving = divided(asked, self.groups.groups)
        given = self._allocated(self.groups.groups - sum(serving))
        self.groups.want(assigned(places(self.groups), serving, given))
        self.wanted.append(asked)
        self.given.append(given)
        self._pass(look, serving)
        self.granted = serving
        for walk, count in zip(self.walks, serving, strict=True):
            walk.go(look, count)

    def _allocated(self, free: int) -> tuple[int, ...]:
        """Groups of the tenants."""
        at = places(self.groups)
        now_s = self.groups.now_s
        claims = [
            claim_of(
                pool,
                self.fleet.worth,
                groups=sum(place.tenant == number for place in at),
                group_idle_watts=self.fleet.group_idle_watts,
                now_s=now_s,
            )
            for number, pool in enumerate(self.pools)
        ]
        terms = AllocationTerms(
            look_s=self.fleet.terms.look_s, ahead=self._ahead(free), keep_s=self.fleet.keep_s
        )
        return allocate(claims, free, terms)

    def _ahead(self, free: int) -> Float64s:
        """Free groups of the day to come, as the day before had them; without one, as now."""
        length = round(DAY_S / self.fleet.terms.look_s)
        needed = np.zeros(length)
        for observer, of in zip(self.observers, self.fleet.models, strict=True):
            rates = observer.history.requests_per_s[-length:]
            if len(rates) < length:
                return np.array([float(free)])
            full = rates * (1 + _HEADROOM) / of.curve.capacity_per_s
            needed += np.maximum(1.0, np.ceil(full))
        ahead: Float64s = np.maximum(self.groups.groups - needed, 0.0)
        return ahead

    def _pass(self, look: int, serving: tuple[int, ...]) -> None:
        """Until the next look, and what came of it for each model."""
        begin_s, interval_s = self.groups.now_s, self.fleet.terms.interval_s
        found: list[FleetTimes] = []
        left: list[list[GroupsLeft]] = [[] for _ in self.walks]
        for interval in range(self.walks[0].intervals_of(look)):
            found.append(self.groups.advance(begin_s + (interval + 1) * interval_s))
            self.times.append(found[-1].tenants)
            for model, times_s in enumerate(self.groups.left):
                left[model] += [self._left(at_s, interval, begin_s) for at_s in times_s]
                times_s.clear()
        for model, outcomes in enumerate(self.outcomes):
            outcomes.next = LookOutcome(
                after=0,
                changed=serving[model] != self.granted[model],
                times=tuple(times.models[model] for times in found),
                totals=self.groups.totals[model],
                left=tuple(left[model]),
            )
            self.groups.totals[model] = HandoverTotals()

    def _left(self, began_s: float, interval: int, begin_s: float) -> GroupsLeft:
        looks_ago = ceil((begin_s - began_s - _SAME_S) / self.fleet.terms.look_s)
        return GroupsLeft(interval=interval, looks_ago=max(0, looks_ago), count=1)


def _pool(tenant: Tenant, *, groups: int, group_idle_watts: float) -> JobPool | BatchPool:
    if isinstance(tenant, TrainingTenant):
        return JobPool(tenant, groups=groups, group_idle_watts=group_idle_watts)
    return BatchPool(tenant, groups=groups, group_idle_watts=group_idle_watts)
