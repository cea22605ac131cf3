"""Groups of one tenant: in its hands, and on their way to it or from it.

`serving.policy.day_night.handover_machine` decides, as for a running server, one state for each
tenant; a group is in the hands of one tenant at most. Without a tenant its groups idle.
"""

from dataclasses import replace
from typing import Final

from serving.analysis.day.leased_groups import GroupTimes, HandoverTotals
from serving.policy.day_night.handover import HandoverPhase
from serving.policy.day_night.handover_machine import (
    Desired,
    GroupHappened,
    HandoverGroup,
    HandoverState,
    HandoverStep,
    Happened,
    JobHappened,
    take,
)

NEVER: Final = float("inf")
_TRAINING: Final = HandoverPhase.TRAINING


class TenantPool:
    """Mutable; times ascend. This one has no work: its groups idle."""

    def __init__(self, *, groups: int, group_idle_watts: float, groups_least: int) -> None:
        self.idle_watts = group_idle_watts
        self.state = HandoverState(
            groups=tuple(HandoverGroup(number=n, chips=(n,)) for n in range(groups)),
            job_chips_min=groups_least,
        )
        self.times = GroupTimes()
        self.totals = HandoverTotals()

    @classmethod
    def idle(cls, *, groups: int, group_idle_watts: float) -> "TenantPool":
        """Of groups that no tenant has."""
        return cls(groups=groups, group_idle_watts=group_idle_watts, groups_least=groups + 1)

    def phase(self, group: int) -> HandoverPhase:
        """Of a group; SERVING for one that is not of this pool."""
        return self.state.groups[group].phase

    def wish(self, phases: tuple[HandoverPhase, ...], *, now_s: float) -> None:
        """Desired phases of all groups."""
        if phases != self.state.desired:
            self.state = take(self.state, Desired(phases=phases), now_s=now_s)

    def take(self, event: GroupHappened | JobHappened, *, now_s: float) -> None:
        """The state after an event."""
        self.state = take(self.state, event, now_s=now_s)

    def enter(self, group: int, phase: HandoverPhase, *, now_s: float) -> None:
        """A group comes into this tenant's hands, or is to, in that phase."""
        del now_s
        own = HandoverGroup(number=group, chips=(group,), phase=phase, desired=_TRAINING)
        self._put(own)

    def leave(self, group: int, *, now_s: float) -> None:
        """A group is no longer this tenant's."""
        del now_s
        self._put(HandoverGroup(number=group, chips=(group,)))

    def _put(self, group: HandoverGroup) -> None:
        groups = self.state.groups
        before, after = groups[: group.number], groups[group.number + 1 :]
        self.state = replace(self.state, groups=(*before, group, *after))

    @property
    def there(self) -> list[int]:
        """Groups in the tenant's hands."""
        return [group.number for group in self.state.groups if group.phase is _TRAINING]

    @property
    def is_done(self) -> bool:
        """Whether its groups have nothing to do, now or later."""
        return True

    @property
    def save_s(self) -> float:
        """Seconds that it needs before a group goes."""
        return 0.0

    def next_s(self, now_s: float) -> float:
        """When something happens by itself."""
        del now_s
        return NEVER

    def happened(self, now_s: float) -> list[Happened]:
        """Events that are due now."""
        del now_s
        return []

    def act(self, step: HandoverStep, *, now_s: float) -> None:
        """Carry out an action on the job."""
        raise AssertionError(f"no job to {step.action} at {now_s:g} s")

    def work(self, seconds: float, *, now_s: float) -> None:
        """Count the time from now on, in which nothing happens."""
        del now_s
        self.count_idle(len(self.there), seconds)

    def count_idle(self, groups: float, seconds: float) -> None:
        """Groups without work."""
        self.times.idle_s += groups * seconds
        self.times.joules += groups * self.idle_watts * seconds

    def count_pause(self, groups: float, seconds: float, watts: float) -> None:
        """Groups that save, start or load, at these watts of them all."""
        self.times.paused_s += groups * seconds
        self.times.joules += watts * seconds
        self.totals.seconds += groups * seconds
        self.totals.joules += watts * seconds

    def counted(self) -> GroupTimes:
        """The times since the last call."""
        times, self.times = self.times, GroupTimes()
        return times
