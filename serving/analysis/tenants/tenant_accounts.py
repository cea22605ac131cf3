"""What a fleet's day came to: by served model, by tenant, and what adds up over all of them."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np

from emulator.arrays import Float64s
from serving.analysis.day.day_result import JOULES_PER_MWH, DayResult
from serving.analysis.day.day_trace import HOUR_S
from serving.analysis.day.leased_groups import GroupTimes, HandoverTotals
from serving.analysis.tenants.batch_pool import BatchPool
from serving.analysis.tenants.fleet_walk import FleetWalk
from serving.analysis.tenants.job_pool import JobPool
from serving.analysis.tenants.tenant_bound import tenant_bound
from serving.analysis.tenants.tenant_day import TenantDay

GROUP_SECONDS: Final = (
    *("serving_s", "leaving_s", "restoring_s", "paused_s", "training_s", "idle_s"),
)
"""Fields of GroupTimes that a group is in one of at any time."""


@dataclass(frozen=True, kw_only=True, eq=False)
class ModelAccount:
    """A served model's day."""

    name: str
    result: DayResult
    denied_share: float  # of the times that its policy asked, when it got fewer groups

    @property
    def group_hours(self) -> float:
        """That it serves, leaves, and comes back in."""
        return _seconds(self.result.walk.times) / HOUR_S

    @property
    def mean_groups(self) -> float:
        """That serve."""
        walk = self.result.walk
        return float(walk.column("serving_s").sum()) / walk.demand.length_s

    @cached_property
    def joules_by_interval(self) -> Float64s:
        """Of its chips, [intervals]."""
        walk, curve = self.result.walk, self.result.machine.curve
        at_work_s = walk.column("serving_s") + walk.column("leaving_s")
        joules: Float64s = curve.chip_watts(walk.group_rates) * at_work_s + walk.column("joules")
        return joules


@dataclass(frozen=True, kw_only=True, eq=False)
class TenantAccount:
    """A tenant's day."""

    pool: JobPool | BatchPool
    times: tuple[GroupTimes, ...]  # [intervals]
    weight_value: float  # of a token
    joule_value: float
    group_idle_watts: float
    end_s: float

    @property
    def totals(self) -> HandoverTotals:
        """Groups given back with work left, job starts, and what pauses and ends cost."""
        return self.pool.totals

    def column(self, name: str) -> Float64s:
        """One field of `GroupTimes`, [intervals]."""
        return np.array([getattr(each, name) for each in self.times])

    def hours(self, *names: str) -> float:
        """Group-hours in some activities; without a name in all."""
        return _seconds(self.times, names or GROUP_SECONDS) / HOUR_S

    @cached_property
    def joules(self) -> float:
        """Of its groups' chips, while it had them."""
        return float(self.column("joules").sum())

    @cached_property
    def tokens(self) -> float:
        """Trained, or put out, without those undone."""
        return float(self.column("tokens").sum()) - self.totals.tokens_undone

    @property
    def value(self) -> float:
        """In the tenants' unit: its tokens, less what its groups took beyond idle ones."""
        idle_joules = self.hours() * HOUR_S * self.group_idle_watts
        return self.weight_value * self.tokens - self.joule_value * (self.joules - idle_joules)

    @property
    def resizes(self) -> int:
        """Without a checkpoint."""
        return self.pool.resizes if isinstance(self.pool, JobPool) else 0

    @property
    def due_share(self) -> float | None:
        """Of the work due by the end of the days, what was done in time; None for none due."""
        if isinstance(self.pool, BatchPool):
            due = [n for n, of in enumerate(self.pool.tenant.submissions) if of.due_s <= self.end_s]
            if not due:
                return None
            asked = sum(self.pool.tenant.submissions[n].requests for n in due)
            return sum(self.pool.in_time[n] for n in due) / asked
        deadline_s, finished_s = self.pool.tenant.deadline_s, self.pool.finished_s
        if deadline_s is None or (finished_s is None and deadline_s > self.end_s):
            return None
        return float(finished_s is not None and finished_s <= deadline_s)

    @property
    def done_s(self) -> float | None:
        """When all its work was done."""
        if isinstance(self.pool, JobPool):
            return self.pool.finished_s
        done = self.pool.done_s
        known = [each for each in done if each is not None]
        return max(known) if len(known) == len(done) else None

    @property
    def left_share(self) -> float | None:
        """Of its work, what is not done; None for a job without an end."""
        if isinstance(self.pool, JobPool):
            tokens = self.pool.tenant.tokens
            return None if tokens is None else 0.0 if self.pool.is_done else self.pool.left / tokens
        asked = sum(each.requests for each in self.pool.tenant.submissions)
        return sum(self.pool.left) / asked


@dataclass(frozen=True, kw_only=True, eq=False)
class NightAccount:
    """All of a day."""

    day: TenantDay
    models: tuple[ModelAccount, ...]
    tenants: tuple[TenantAccount, ...]
    idle: tuple[GroupTimes, ...]  # groups that no one has, [intervals]

    @classmethod
    def of(cls, day: TenantDay) -> "NightAccount":
        """Of a day that was walked."""
        walk, worth = day.walk, day.settings.worth
        return cls(
            day=day,
            models=tuple(
                ModelAccount(name=of.name, result=result, denied_share=_denied(walk, number))
                for number, (of, result) in enumerate(
                    zip(walk.fleet.models, day.models, strict=True)
                )
            ),
            tenants=tuple(
                TenantAccount(
                    pool=pool,
                    times=times,
                    weight_value=worth.of_token(pool.tenant.weight),
                    joule_value=worth.of_joule,
                    group_idle_watts=walk.fleet.group_idle_watts,
                    end_s=day.settings.length_s,
                )
                for pool, times in zip(walk.pools, walk.times, strict=False)
            ),
            idle=walk.times[-1],
        )

    @property
    def idle_hours(self) -> float:
        """Group-hours that no one had."""
        return _seconds(self.idle) / HOUR_S

    @property
    def idle_joules(self) -> float:
        """Of the chips of these groups, and of those outside of groups."""
        spare_watts = self.day.models[0].machine.left_over_watts
        of_groups = sum(each.joules for each in self.idle)
        return of_groups + spare_watts * self.day.settings.length_s

    @property
    def group_hours(self) -> float:
        """Of all groups, by who had them: what `day` says they are."""
        served = sum(each.group_hours for each in self.models)
        return served + sum(each.hours() for each in self.tenants) + self.idle_hours

    @cached_property
    def chip_joules(self) -> Float64s:
        """Of all chips of the machine, [intervals], by who had them; spare chips idle."""
        interval_s = self.day.settings.terms.interval_s
        joules: Float64s = sum(each.joules_by_interval for each in self.models) + np.array(
            [each.joules for each in self.idle]
        )
        for tenant in self.tenants:
            joules = joules + tenant.column("joules")
        return joules + self.day.models[0].machine.left_over_watts * interval_s

    @cached_property
    def facility_watts(self) -> Float64s:
        """At the utility's meter, [intervals]."""
        interval_s = self.day.settings.terms.interval_s
        return self.day.models[0].machine.facility_watts(self.chip_joules / interval_s)

    @property
    def energy_mwh(self) -> float:
        """At the utility's meter."""
        joules = float(self.facility_watts.sum()) * self.day.settings.terms.interval_s
        return joules / JOULES_PER_MWH

    @property
    def value(self) -> float:
        """Of all tenants, in their unit."""
        return sum(each.value for each in self.tenants)

    @cached_property
    def value_bound(self) -> float:
        """No allocation of the groups that the models left has a higher value."""
        return tenant_bound(self.day.walk)


def _seconds(times: Iterable[GroupTimes], names: tuple[str, ...] = GROUP_SECONDS) -> float:
    return float(sum(getattr(each, name) for each in times for name in names))


def _denied(walk: FleetWalk, number: int) -> float:
    asked = np.array([each[number] for each in walk.wanted])
    return float((asked > np.array(walk.models[number].wanted)).mean())
