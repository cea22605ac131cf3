"""The policy that knows the coming demand and meets all of it, with the fewest groups.

In every bucket enough groups serve for all buckets until a group called then could serve; of such
plans, dynamic programming finds the one that loses the least training time to serving and draining.
"""

from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

from emulator.errors import ConfigError
from serving.policy.day_night.burst import Guard
from serving.policy.day_night.forecast import sliding_max
from serving.policy.day_night.history import DemandHistory
from serving.policy.day_night.observation import Observation
from serving.policy.day_night.options import options_text
from serving.policy.day_night.policy import Decision, Policy

I64 = NDArray[np.int64]
_PLANS_MAX: Final = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Oracle(Policy):
    """Serves with the fewest groups that meet the known demand with the headroom.

    `future`: true rates of the whole run; the nearest bucket counts outside. Raises ConfigError for
    an empty one.
    """

    name = "oracle"
    weighs_demand = True

    future: DemandHistory
    guard: Guard = field(default_factory=Guard)

    def __post_init__(self) -> None:
        if len(self.future) == 0:
            raise ConfigError("oracle", "no demand", "a demand to come")

    def __str__(self) -> str:
        options = options_text(self, Oracle(future=self.future))
        return f"{self.name}:{options}" if options else self.name

    def decide(self, observed: Observation) -> Decision:
        """The plan's value in the bucket that holds the time."""
        needed = self.plan(observed)
        future = self.future
        first_s = future.end_s - len(future) * future.bucket_s
        # A bucket holds its start, but a clock that is summed may fall short of it by rounding.
        place = int((observed.now_s - first_s) / future.bucket_s + 1e-6)
        serving = int(needed[min(max(place, 0), len(needed) - 1)])
        return Decision(serving_groups=serving, reason="knows the demand to come")

    def plan(self, observed: Observation) -> I64:
        """Serving groups of every bucket of the future, [buckets]."""
        # The rates that the headroom makes of it, in groups: the same sum as `Guard.needed`.
        capacity_per_s = observed.capacity_per_group_per_s / (1.0 + self.guard.headroom)
        return _plan(
            self.future,
            capacity_per_s,
            observed.groups,
            observed.groups_min,
            observed.drain_s,
            observed.restore_s,
        )

    def describe(self) -> str:
        """State what it does and assumes."""
        return (
            f"{self}: knows the demand to come and serves with the fewest groups that meet it with "
            f"{self.guard.headroom:.0%} headroom; for comparison, nobody can know it"
        )


@lru_cache(maxsize=_PLANS_MAX)
def _plan(
    future: DemandHistory,
    capacity_per_s: float,
    groups: int,
    groups_min: int,
    drain_s: float,
    restore_s: float,
) -> I64:
    """The plan of one future; cached by identity, as futures never change."""
    needs = np.ceil(future.requests_per_s / capacity_per_s - 1e-9)
    needs = np.clip(needs, groups_min, groups)  # [buckets]
    ahead = int(np.ceil(restore_s / future.bucket_s - 1e-9))
    padded = np.concatenate([needs, np.full(ahead, needs[-1])])
    early = sliding_max(padded, ahead + 1).astype(np.int64)  # [buckets], called so early
    plan = cheapest_plan(early, groups=groups, fall_cost=drain_s / future.bucket_s)
    plan.flags.writeable = False  # shared by all who ask
    return plan


def cheapest_plan(needs: I64, *, groups: int, fall_cost: float) -> I64:
    """The plan that loses the least training: serving groups, [buckets] -> [buckets].

    A bucket has from its need to `groups`. Costs: one per serving group and bucket, and
    `fall_cost`, in buckets, per group that leaves, which does not train on its way out; a rise
    costs only its serving. All serve before the first bucket.
    """
    levels = np.arange(groups + 1)  # [levels]
    # From the second level to the first: those above it leave.
    leaving = fall_cost * np.maximum(levels[None, :] - levels[:, None], 0)  # [levels, levels]
    cost = np.where(levels == groups, 0.0, np.inf)  # [levels]
    came_from = np.empty((len(needs), groups + 1), dtype=np.int64)
    for bucket, need in enumerate(needs):
        ways = cost[None, :] + leaving  # [levels, levels]
        came_from[bucket] = np.argmin(ways, axis=1)
        cost = np.where(levels >= need, ways[levels, came_from[bucket]] + levels, np.inf)
    plan = np.empty(len(needs), dtype=np.int64)
    level = int(np.argmin(cost))
    for bucket in range(len(needs) - 1, -1, -1):
        plan[bucket] = level
        level = int(came_from[bucket, level])
    return plan
