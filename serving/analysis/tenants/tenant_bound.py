"""An upper bound on what tenants can make of the groups that a day's models leave to them.

A linear programme over looks and tenants, which HiGHS solves. Of each look it knows the groups that
the models want; what is left works for the tenants, each for a share of the look with each number
of groups. Whatever an allocation does is a point of it, since it demands less:

- Shares of a look need not be whole, and a job changes its size for nothing.
- Groups work from the look on in which models want no more of them, without being drained, and
  batch groups have their weights at once.
- What a job has trained whose state is lost between two sizes, or an interrupted request had done,
  is not lost.

A job that stopped, because too few groups were left, starts anew: in the looks until it trains its
fewest groups are taken for the shortest start.
"""

from dataclasses import dataclass
from math import ceil
from typing import Any, Final

import numpy as np

from emulator.arrays import Float64s
from serving.analysis.tenants.fleet_walk import FleetWalk, NightFleet
from serving.analysis.tenants.tenant import Tenant, TrainingTenant

_ROUNDING: Final = 1e-6
"""Of the bound, by which a solver may be off."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Columns:
    """A tenant's variables: shares of each look at work, [looks, groups]; of a job also whether it
    trains as a look begins and whether it has started in it, [looks] each.

    Each is a number among all variables.
    """

    tenant: Tenant
    at_work: np.ndarray[Any, np.dtype[np.int64]]
    begins: np.ndarray[Any, np.dtype[np.int64]]
    started: np.ndarray[Any, np.dtype[np.int64]]

    @property
    def least(self) -> int:
        """Fewest groups that work."""
        return int(np.flatnonzero(self.tenant.work_per_s)[0])


class _Programme:
    """Rows of `A x <= b`. Mutable."""

    def __init__(self) -> None:
        self._rows: list[tuple[np.ndarray[Any, np.dtype[np.int64]], Float64s]] = []
        self._most: list[float] = []

    def add(self, most: float, *parts: tuple[Any, Any]) -> None:
        """The sum of variables times numbers, both of one shape or a number for all."""
        spread = [np.broadcast_arrays(*part) for part in parts]
        columns = np.concatenate([each.ravel() for each, _ in spread]).astype(np.int64)
        values = np.concatenate([np.asarray(v, dtype=np.float64).ravel() for _, v in spread])
        self._rows.append((columns, values))
        self._most.append(most)

    def highest(self, worth: Float64s, upper: Float64s) -> float:
        """Of `worth` times the variables, which are from 0 to `upper`."""
        from scipy.optimize import linprog  # type: ignore[import-untyped]  # takes 0.3 s
        from scipy.sparse import csr_array  # type: ignore[import-untyped]

        ends = np.cumsum([0, *(len(columns) for columns, _ in self._rows)])
        columns = np.concatenate([columns for columns, _ in self._rows])
        values = np.concatenate([values for _, values in self._rows])
        matrix = csr_array((values, columns, ends), shape=(len(self._rows), len(worth)))
        bounds = np.stack([np.zeros(len(upper)), upper], axis=1)
        found = linprog(-worth, A_ub=matrix, b_ub=self._most, bounds=bounds, method="highs")
        assert found.status == 0, found.message  # nothing at work keeps all, and all is bounded
        return -float(found.fun)


def tenant_bound(walk: FleetWalk) -> float:
    """No allocation of the groups that the models of `walk` did not want has a higher value, in the
    tenants' unit, as `NightAccount.value` has it.
    """
    fleet = walk.fleet
    look_s = fleet.terms.look_s
    days_s = walk.models[0].demand.length_s
    wanted = np.array([model.wanted for model in walk.models], dtype=np.float64)
    free = fleet.groups - wanted.sum(axis=0)  # [looks]
    lengths_s = np.minimum(look_s, days_s - look_s * np.arange(len(free)))
    tenants, count = _columns(fleet, len(free))
    if not tenants:
        return 0.0
    upper, worth = np.ones(count), np.zeros(count)
    programme = _Programme()
    groups = np.arange(fleet.groups + 1)
    for each in tenants:
        upper[each.at_work] = (groups > 0) & (groups <= free[:, None]) & _works(each.tenant)
        worth[each.at_work] = _value_per_s(each.tenant, fleet) * lengths_s[:, None]
        _limit_work(programme, each, lengths_s)
        if len(each.begins):
            too_few = free < each.least
            upper[each.begins[too_few]] = upper[each.started[too_few]] = 0.0
            upper[each.begins[0]] = 0.0
            _limit_starts(programme, each, lengths_s)
    _limit_groups(programme, tenants, free, lengths_s)
    idle = sum(_cheapest_pause(each.tenant, fleet) for each in tenants) * float(free @ lengths_s)
    found = programme.highest(worth, upper)
    return found + idle + _ROUNDING * abs(found)


def _columns(fleet: NightFleet, looks: int) -> tuple[list[_Columns], int]:
    """Of the tenants that can work at all, and how many there are."""
    found, count = [], 0
    for tenant in fleet.tenants:
        if not tenant.work_per_s.any():
            continue
        sizes = [(looks, fleet.groups + 1), *[(looks if _is_job(tenant) else 0,)] * 2]
        parts = []
        for size in sizes:
            number = int(np.prod(size))
            parts.append(count + np.arange(number).reshape(size))
            count += number
        at_work, begins, started = parts
        found.append(_Columns(tenant=tenant, at_work=at_work, begins=begins, started=started))
    return found, count


def _is_job(tenant: Tenant) -> bool:
    return isinstance(tenant, TrainingTenant)


def _works(tenant: Tenant) -> np.ndarray[Any, np.dtype[np.bool_]]:
    return tenant.work_per_s > 0


def _value_per_s(tenant: Tenant, fleet: NightFleet) -> Float64s:
    """Of its groups at work, [groups + 1]."""
    earned = fleet.worth.of_token(tenant.weight) * tenant.tokens_per_work * tenant.work_per_s
    beyond_idle = tenant.watts - np.arange(fleet.groups + 1) * fleet.group_idle_watts
    value: Float64s = earned - fleet.worth.of_joule * beyond_idle
    return value


def _limit_work(programme: _Programme, of: _Columns, lengths_s: Float64s) -> None:
    """All of it, and before each time at which requests arrive those that were there."""
    work = of.tenant.work_per_s * lengths_s[:, None]  # [looks, groups + 1]
    if isinstance(of.tenant, TrainingTenant):
        if of.tenant.tokens is not None:
            programme.add(of.tenant.tokens, (of.at_work, work))
        return
    submissions, ends_s = of.tenant.submissions, np.cumsum(lengths_s)
    for at_s in sorted({each.at_s for each in submissions} | {float("inf")}):
        until = ends_s <= at_s
        if until.any():
            there = sum(each.requests for each in submissions if each.at_s < at_s)
            programme.add(there, (of.at_work[until], work[until]))


def _start(tenant: TrainingTenant) -> float:
    """The shortest, in seconds."""
    trained = tenant.trained
    return float(trained.start_s[trained.tokens_per_s > 0].min())


def _limit_starts(programme: _Programme, of: _Columns, lengths_s: Float64s) -> None:
    """A job trains in a look if it did as that began, or has started in it."""
    assert isinstance(of.tenant, TrainingTenant)
    start_s = _start(of.tenant)
    for look in range(len(lengths_s)):
        before = (of.begins[look], -1.0), (of.started[look], -1.0)
        programme.add(0.0, (of.at_work[look], 1.0), *before)
        if look + 1 < len(lengths_s):
            programme.add(0.0, (of.begins[look + 1], 1.0), *before)
        within = _since_start(look, start_s, lengths_s)
        at_work = (of.at_work[within], lengths_s[within, None])
        programme.add(float(lengths_s[within].sum()), at_work, (of.started[look], start_s))


def _since_start(look: int, start_s: float, lengths_s: Float64s) -> slice:
    """Looks in which a start may lie that ends in a look."""
    return slice(max(0, look - ceil(start_s / lengths_s[0])), look + 1)


def _limit_groups(
    programme: _Programme, tenants: list[_Columns], free: Float64s, lengths_s: Float64s
) -> None:
    """Those at work, and those that start, have no group twice; a tenant has one size at a time."""
    jobs = [(of, _start(of.tenant)) for of in tenants if isinstance(of.tenant, TrainingTenant)]
    longest_s = max((start_s for _, start_s in jobs), default=0.0)
    for look in range(len(lengths_s)):
        for of in tenants:
            programme.add(1.0, (of.at_work[look], 1.0))
        starting = [(of.started[look], of.least * start_s) for of, start_s in jobs]
        for within, starts in (
            (slice(look, look + 1), []),
            (_since_start(look, longest_s, lengths_s), starting),
        ):
            groups_s = np.arange(tenants[0].at_work.shape[1]) * lengths_s[within, None]
            most = float(free[within] @ lengths_s[within])
            programme.add(most, *((of.at_work[within], groups_s) for of in tenants), *starts)


def _cheapest_pause(tenant: Tenant, fleet: NightFleet) -> float:
    """Value of a group-second that a tenant saves, starts or loads in: above 0 where its chips then
    draw less than idle ones.
    """
    groups = np.arange(fleet.groups + 1, dtype=np.float64)
    pauses: list[tuple[Float64s, Float64s]]
    if isinstance(tenant, TrainingTenant):
        trained, moved = tenant.trained, tenant.resharding
        pauses = [(trained.start_joules, trained.start_s), (trained.save_joules, trained.save_s)]
        if moved is not None:
            pauses.append((moved.joules, moved.seconds))
    else:
        pauses = [(tenant.load_joules * groups, np.where(groups, tenant.load_s, 0.0))]
    least_watts = float("inf")
    for joules, seconds in pauses:
        # Between two sizes the groups are those of the larger.
        those = groups if seconds.ndim == 1 else np.maximum(groups[:, None], groups)
        lasts = np.isfinite(seconds) & (seconds > 0) & (those > 0)
        watts = joules[lasts] / (seconds[lasts] * those[lasts])
        least_watts = min(least_watts, float(watts.min(initial=least_watts)))
    return fleet.worth.of_joule * max(0.0, fleet.group_idle_watts - least_watts)
