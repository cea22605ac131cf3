"""Input of a day-and-night policy, with all of its memory: policies are pure.

Time is Unix time of the policy's own clock, which a live run may let pass faster than the emulated
one.
"""

import math
from dataclasses import dataclass

from emulator.errors import ConfigError
from serving.policy.day_night.history import DemandHistory


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Observation:
    """The machine and its demand at one moment. Raises ConfigError for values out of range.

    `history` ends at or before `now_s`; `load_per_s`: present request rate. `serving_groups` serve
    or come back, the rest of `groups` train or drain; `since_change_s`: since that number last
    changed. `capacity_per_group_per_s`: requests per second that one group serves within the
    targets. `groups_min` must always serve, for what they hold. `queue`: waiting requests beyond
    the usual; `ttft_attainment`, `tpot_attainment`: share of recent requests within TTFT's and
    TPOT's limit, None without any. `drain_s`, `restore_s`: time for a group to leave, and to come
    back. `job_groups_min`: of fewer leased groups none trains.
    """

    now_s: float
    history: DemandHistory
    load_per_s: float
    groups: int
    serving_groups: int
    since_change_s: float
    capacity_per_group_per_s: float
    groups_min: int = 1
    queue: int = 0
    ttft_attainment: float | None = None
    tpot_attainment: float | None = None
    drain_s: float = 0.0
    restore_s: float = 0.0
    job_groups_min: int = 1

    def __post_init__(self) -> None:
        for name in ("load_per_s", "since_change_s", "queue", "drain_s", "restore_s"):
            if not getattr(self, name) >= 0:
                raise ConfigError(name, getattr(self, name), ">= 0")
        if not 0 < self.capacity_per_group_per_s < math.inf:
            expected = "> 0 requests/s"
            raise ConfigError("capacity_per_group_per_s", self.capacity_per_group_per_s, expected)
        if not 0 <= self.groups_min <= self.groups:
            raise ConfigError("groups_min", self.groups_min, f"0 to {self.groups} groups")
        if not 0 <= self.serving_groups <= self.groups:
            raise ConfigError("serving_groups", self.serving_groups, f"0 to {self.groups} groups")
        if self.job_groups_min < 1:
            raise ConfigError("job_groups_min", self.job_groups_min, "at least 1 group")
        for name in ("ttft_attainment", "tpot_attainment"):
            share = getattr(self, name)
            if share is not None and not 0 <= share <= 1:
                raise ConfigError(name, share, "a share, 0 to 1")

    def groups_for(self, requests_per_s: float) -> int:
        """Fewest groups that serve a rate, within `groups_min` and `groups`."""
        full = requests_per_s / self.capacity_per_group_per_s
        if full >= self.groups:  # also a rate without a limit
            return self.groups
        # A rate that is a multiple of the capacity but for rounding needs no further group.
        needed = math.ceil(full - 1e-9)
        return min(max(needed, self.groups_min), self.groups)
