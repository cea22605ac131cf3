"""What a tenant asks for at a look, by what it has left to do and what that is worth."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

import numpy as np

from emulator.arrays import Float64s
from serving.analysis.day.day_tables import KWH_J, MILLION
from serving.analysis.tenants.allocation import DueWork, GroupClaim
from serving.analysis.tenants.batch_pool import BatchPool
from serving.analysis.tenants.job_pool import JobPool

_NEVER: Final = float("inf")


class WorthUnit(StrEnum):
    """What the weight of a tenant is, and what its groups' power costs."""

    TOKENS = "tokens"  # the weight of a token; power costs nothing
    USD = "usd"  # dollars of a million tokens, less what power costs
    JOULES = "joules"  # joules that a token is worth, less those that it takes


@dataclass(frozen=True, slots=True, kw_only=True)
class Worth:
    """The unit of all tenants' weights; a kWh costs `kwh_dollars`, in dollars alone."""

    unit: WorthUnit = WorthUnit.TOKENS
    kwh_dollars: float = 0.0

    def of_token(self, weight: float) -> float:
        """In the unit, of a token with that weight."""
        return weight / MILLION if self.unit is WorthUnit.USD else weight

    @property
    def of_joule(self) -> float:
        """What a joule costs."""
        return {
            WorthUnit.TOKENS: 0.0,
            WorthUnit.USD: self.kwh_dollars / KWH_J,
            WorthUnit.JOULES: 1.0,
        }[self.unit]


def claim_of(
    pool: JobPool | BatchPool, worth: Worth, *, groups: int, group_idle_watts: float, now_s: float
) -> GroupClaim:
    """Of a tenant that has so many groups, those on their way included."""
    tenant = pool.tenant
    work_per_s = tenant.work_per_s
    earned = worth.of_token(tenant.weight) * tenant.tokens_per_work * work_per_s
    beyond_idle = tenant.watts - np.arange(len(work_per_s)) * group_idle_watts
    value: Float64s = earned - worth.of_joule * beyond_idle
    if isinstance(pool, BatchPool):
        return GroupClaim(
            priority=tenant.priority,
            groups=groups,
            work_per_s=work_per_s,
            value_per_s=np.where(work_per_s > 0, value, 0.0),
            work_left=pool.waiting(now_s),
            due=pool.due(now_s),
            join_s=pool.tenant.load_s,
        )
    return GroupClaim(
        priority=tenant.priority,
        groups=groups,
        work_per_s=work_per_s,
        value_per_s=np.where(work_per_s > 0, value, 0.0),
        work_left=0.0 if pool.is_done else pool.left,
        due=_due_of_job(pool, now_s),
        pause_s=_pause_s(pool, groups),
    )


def _due_of_job(pool: JobPool, now_s: float) -> tuple[DueWork, ...]:
    deadline_s = pool.tenant.deadline_s
    if deadline_s is None or pool.is_done or deadline_s <= now_s:
        return ()
    return (DueWork(in_s=deadline_s - now_s, work=pool.left),)


def _pause_s(pool: JobPool, groups: int) -> float:
    """In which it trains nothing when its number of groups changes; of a start, its save too."""
    trained, resharding = pool.tenant.trained, pool.tenant.resharding
    if not groups:
        return float(trained.save_s[-1] + trained.start_s[-1])
    if resharding is not None:
        near = resharding.seconds[groups, max(groups - 1, 0) : groups + 2]
        slowest = float(near.max())
        if slowest < _NEVER:
            return float(resharding.finish_s[groups]) + slowest
    return float(trained.save_s[groups] + trained.start_s[groups])
