"""The hand-over machine before engines: turns changes of their leases into events.

The engines' leases are the truth, so the next look makes up for a step that failed half-way or was
missed. What is known of the job is another's: a server watches a process, a simulation has costs.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence

from serving.policy.day_night.handover import (
    HandoverEvent,
    HandoverLimits,
    HandoverPhase,
    JobEvent,
    transition,
)
from serving.policy.day_night.handover_machine import (
    Desired,
    GroupHappened,
    HandoverGroup,
    HandoverState,
    HandoverStep,
    Happened,
    JobHappened,
    job_of,
    reachable,
    step,
    take,
)
from serving.wire.machine_state import FOR_MAINTENANCE, LeaseState

_S, _D, _T = HandoverPhase.SERVING, HandoverPhase.DRAINING, HandoverPhase.TRAINING
_R, _M = HandoverPhase.RESTORING, HandoverPhase.MAINTENANCE


class HandoverGroups:
    """Lives with its engines; never waits. Groups are `group_chips` of the first `chips`."""

    def __init__(
        self, *, chips: int, group_chips: int, limits: HandoverLimits, job_chips_min: int = 1
    ) -> None:
        self.limits = limits
        self.state = HandoverState(
            groups=groups_of(chips, group_chips), job_chips_min=job_chips_min
        )
        self.leases: Mapping[int, LeaseState] = {}
        """The leases that groups are out with, by group."""
        self.returns = ReturnTimes()

    def see_leases(self, leases: Iterable[LeaseState], *, now_s: float) -> None:
        """Turn changes since the last look into events."""
        before, self.leases = self.leases, _by_group(self.state.groups, leases)
        for group in self.state.groups:
            number = group.number
            was, now = before.get(number), self.leases.get(number)
            its_job = job_of(self.state.job, group)
            cancelled = group.in_maintenance or reachable(group, its_job, self.limits) is _S
            if was is not None and now is not None and was.number != now.number:
                self.happened(*events_between(group, None, cancelled=cancelled), now_s=now_s)
            group_now = self.state.groups[number]
            self.happened(*events_between(group_now, now, cancelled=cancelled), now_s=now_s)

    def want(self, phases: Sequence[HandoverPhase], *, now_s: float) -> tuple[HandoverStep, ...]:
        """Take each group's wanted phase; returns the due steps."""
        wish = Desired(phases=tuple(phases))
        self.state, steps = step(self.state, wish, now_s=now_s, limits=self.limits)
        return steps

    def refused(self, group: int, words: str, *, now_s: float) -> None:
        """Record that the engine refused a group's step."""
        event = HandoverEvent.REFUSED
        self.happened(GroupHappened(group=group, event=event, words=words), now_s=now_s)

    def stop_asked(self, *, now_s: float) -> None:
        """Record that the job was asked to stop, if it runs."""
        if self.state.job.phase.alive:
            self.happened(JobHappened(event=JobEvent.STOP_ASKED), now_s=now_s)

    def happened(self, *events: Happened, now_s: float) -> None:
        """Take events; raises HandoverError for an illegal one."""
        for event in events:
            self.state = take(self.state, event, now_s=now_s)


def groups_of(chips: int, group_chips: int) -> tuple[HandoverGroup, ...]:
    """The groups of a partition's first `chips`, all serving."""
    return tuple(
        HandoverGroup(number=n, chips=tuple(range(n * group_chips, (n + 1) * group_chips)))
        for n in range(chips // group_chips)
    )


def _by_group(
    groups: Sequence[HandoverGroup], leases: Iterable[LeaseState]
) -> dict[int, LeaseState]:
    """The newest lease with chips of each group that does not serve."""
    going = [lease for lease in leases if lease.phase != _S]
    return {
        group.number: lease
        for lease in going
        for group in groups
        if set(lease.chips) & set(group.chips)
    }


def events_between(
    group: HandoverGroup, lease: LeaseState | None, *, cancelled: bool
) -> Iterator[GroupHappened]:
    """Events of a group now out with `lease`, or serving without one, by the shortest path of
    phases.

    `cancelled`: its drain was to be cancelled.
    """
    phase, after = group.phase, _S if lease is None else HandoverPhase(lease.phase)
    maintenance = lease is not None and lease.purpose == FOR_MAINTENANCE
    lost = () if lease is None else _without_work(group, lease)
    reason = "" if lease is None else lease.reason
    had = group.lost_chips

    def happened(event: HandoverEvent, words: str = "") -> GroupHappened:
        return GroupHappened(
            group=group.number, event=event, chips=lost, maintenance=maintenance, words=words
        )

    match phase, after:
        case (HandoverPhase.DRAINING, HandoverPhase.SERVING) if cancelled:
            yield happened(HandoverEvent.CANCELLED)
        case (HandoverPhase.DRAINING, HandoverPhase.SERVING):
            yield happened(HandoverEvent.DRAIN_FAILED, "the drain was given up")
        case (HandoverPhase.RESTORING, HandoverPhase.TRAINING):
            yield happened(HandoverEvent.RESTORE_FAILED, reason)
        case (HandoverPhase.RESTORING, HandoverPhase.MAINTENANCE):
            yield happened(HandoverEvent.SENT_BACK, reason)
        case _:
            onward = {
                _S: HandoverEvent.DRAIN,
                _D: HandoverEvent.EMPTIED if after is _M else HandoverEvent.VACATED,
                _T: HandoverEvent.RESUME,
                _M: HandoverEvent.RESUME,
                _R: HandoverEvent.RESTORED,
            }
            while phase is not after:
                yield happened(onward[phase])
                phase = transition(phase, onward[phase])
                had = () if phase is _S else had
    if after in (_T, _M) and set(lost) != set(had):
        yield happened(HandoverEvent.CHIP_LOST, reason)


def _without_work(group: HandoverGroup, lease: LeaseState) -> tuple[int, ...]:
    """The group's chips that have failed in its lease, or were left out of it."""
    behind = set() if lease.purpose == FOR_MAINTENANCE else set(group.chips) - set(lease.chips)
    return tuple(sorted(behind | (set(lease.lost_chips) & set(group.chips))))


class ReturnTimes:
    """Emulated time from a group's recall to its serving: its job saves and stops, weights are
    read.

    `last_s` is None before the first return from training.
    """

    def __init__(self) -> None:
        self.last_s: float | None = None
        self._called: dict[int, float] = {}  # by group, since when

    def note(self, groups: Sequence[HandoverGroup], emulated_s: float) -> None:
        """Note which groups were recalled or have returned."""
        for group in groups:
            if group.desired is not _S:
                self._called.pop(group.number, None)
            elif group.phase is _T:
                self._called.setdefault(group.number, emulated_s)
            elif group.phase is _S and group.number in self._called:
                self.last_s = emulated_s - self._called.pop(group.number)
