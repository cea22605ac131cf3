"""How the chips of a machine change hands, live or simulated."""

from dataclasses import dataclass
from typing import Final

from emulator.errors import ConfigError
from loadgen.measures.slo import Slo
from serving.policy.day_night.day_clock import DayClock
from serving.policy.day_night.policy_text import parse_policy

MANUAL: Final = "manual"
"""The policy under which only control calls move groups."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HandoverSettings:
    """The policy, and the groups that it moves.

    Attributes:
        policy: see `parse_policy`, or `manual`.
        day_length_s: emulated seconds.
        day_start: the time of day at the engine's start, see `DayClock.starting`.
        zone: of shown and given times.
        chips: of all groups and what always serves.
        group_chips: chips that change hands together, whole ranks.
        lend_groups: groups that may train at a time.
        grace_s: emulated seconds for a leaving group's running requests.
        slo: the share of requests that meets its TTFT brings groups back.
        group_requests_per_s: per group and emulated second within the target; None: load is not
            weighed.
        group_requests_source: of that number, for a reader.
        reading_s: emulated seconds of a returning group's weight read, by the cost model, or 0.
    """

    policy: str
    day_length_s: float
    day_start: str
    zone: str
    chips: int
    group_chips: int
    lend_groups: int
    grace_s: float
    slo: Slo
    group_requests_per_s: float | None
    group_requests_source: str
    reading_s: float

    def __post_init__(self) -> None:
        if self.policy != MANUAL:
            parse_policy(self.policy)
        self.clock(0.0)
        if not 1 <= self.group_chips <= self.chips // 2:
            expected = f"at least 2 groups on {self.chips} chips: one of them always serves"
            raise ConfigError("group_chips", self.group_chips, expected)
        if not 1 <= self.lend_groups < self.groups:
            lend, most = self.lend_groups * self.group_chips, self.chips - self.group_chips
            raise ConfigError("lend_chips", lend, f"{self.group_chips} to {most} chips")
        if not 0 <= self.grace_s < float("inf"):
            raise ConfigError("drain_grace", f"{self.grace_s:g}s", "at least 0s")
        if self.group_requests_per_s is not None:
            check_above_0("group_requests_per_s", self.group_requests_per_s)
        if not 0 <= self.reading_s < float("inf"):
            raise ConfigError("reading_s", self.reading_s, "at least 0")

    @property
    def groups(self) -> int:
        """Groups of the machine; remaining chips always serve."""
        return self.chips // self.group_chips

    def clock(self, wall_s: float) -> DayClock:
        """The policy's clock of an engine that starts at the Unix time `wall_s`."""
        return DayClock.starting(
            self.day_start, day_length_s=self.day_length_s, zone=self.zone, wall_s=wall_s
        )


def check_weighs(text: str, group_requests_per_s: float | None) -> None:
    """Raise ConfigError for a policy that needs a group's rate without one."""
    if text == MANUAL or group_requests_per_s is not None:
        return
    if parse_policy(text).weighs_demand:
        expected = (
            "--group-requests-per-s with it, what a group serves, or a target that the cost model "
            "sees kept"
        )
        raise ConfigError("policy", text, expected)


def check_above_0(name: str, value: float) -> None:
    """Raise ConfigError unless `value` is a number above 0."""
    if not 0 < value < float("inf"):
        raise ConfigError(name, value, "a number above 0")
