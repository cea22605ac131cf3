"""The hand-over machine of a running server: turns changes of leases and job into events.

The engine's leases and the job's process are the truth, so the next tick makes up for a step that
failed half-way or was missed. This adds only the server's own attempts.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from serving.policy.day_night.handover import (
    HandoverEvent,
    HandoverLimits,
    HandoverPhase,
    JobEvent,
    JobPhase,
    transition,
)
from serving.policy.day_night.handover_machine import (
    Desired,
    GroupHappened,
    HandoverGroup,
    HandoverJob,
    HandoverState,
    HandoverStep,
    Happened,
    JobHappened,
    job_of,
    reachable,
    step,
    take,
)
from serving.server.day_night.job_failure import JobFailure
from serving.server.day_night.job_record import JobRecord
from serving.wire.machine_state import FOR_MAINTENANCE, LeaseState

_S, _D, _T = HandoverPhase.SERVING, HandoverPhase.DRAINING, HandoverPhase.TRAINING
_R, _M = HandoverPhase.RESTORING, HandoverPhase.MAINTENANCE


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSeen:
    """The job's process and directory at one moment; `record` is None before the first start.

    `phase` is never SAVING: only the server knows that it asked for a stop. `heard_s` is its last
    sign of life; `step` None before the first report; `said` a failed job's last words.
    """

    record: JobRecord | None = None
    phase: JobPhase = JobPhase.ABSENT
    heard_s: float = 0.0
    step: int | None = None
    said: str = ""


class LiveHandover:
    """Lives with its engine; never waits. Groups are `group_chips` of the first `chips`."""

    def __init__(self, *, chips: int, group_chips: int, limits: HandoverLimits) -> None:
        self.limits = limits
        self.state = HandoverState(groups=groups_of(chips, group_chips))
        self.leases: Mapping[int, LeaseState] = {}
        """The leases that groups are out with, by group."""
        self.job_failure: JobFailure | None = None
        """The job's last failure, until it has done a step again."""
        self.returns = ReturnTimes()
        self._record: JobRecord | None = None
        self._first_step: int | None = None
        self._looked = False

    def see(
        self, leases: Iterable[LeaseState], job: JobSeen, *, now_s: float, emulated_s: float
    ) -> None:
        """Turn changes since the last tick into events."""
        before, self.leases = self.leases, _by_group(self.state.groups, leases)
        for group in self.state.groups:
            number = group.number
            was, now = before.get(number), self.leases.get(number)
            its_job = job_of(self.state.job, group)
            cancelled = group.in_maintenance or reachable(group, its_job, self.limits) is _S
            if was is not None and now is not None and was.number != now.number:
                self._take(events_between(group, None, cancelled=cancelled), now_s)
            group_now = self.state.groups[number]
            self._take(events_between(group_now, now, cancelled=cancelled), now_s)
        self._see_job(job, now_s)
        self._looked = True
        self.returns.note(self.state.groups, emulated_s)

    def want(self, phases: Sequence[HandoverPhase], *, now_s: float) -> tuple[HandoverStep, ...]:
        """Take each group's wanted phase; returns the due steps."""
        wish = Desired(phases=tuple(phases))
        self.state, steps = step(self.state, wish, now_s=now_s, limits=self.limits)
        return steps

    def refused(self, group: int, words: str, *, now_s: float) -> None:
        """Record that the engine refused a group's step."""
        event = HandoverEvent.REFUSED
        self._take([GroupHappened(group=group, event=event, words=words)], now_s)

    def stop_asked(self, *, now_s: float) -> None:
        """Record that the job was asked to stop, if it runs."""
        if self.state.job.phase.alive:
            self._take([JobHappened(event=JobEvent.STOP_ASKED)], now_s)

    def forgive(self, *, now_s: float) -> None:
        """Let the job start at once; keeps its last failure."""
        self._take([JobHappened(event=JobEvent.FORGIVEN)], now_s)

    def _take(self, events: Iterable[Happened], now_s: float) -> None:
        for event in events:
            self.state = take(self.state, event, now_s=now_s)

    def _see_job(self, seen: JobSeen, now_s: float) -> None:
        record, phase = seen.record, seen.phase
        if record is None:
            return
        if not self._looked and not phase.alive:
            # How another server's job ended is not this one's failure.
            self._record = record
            self.state = replace(self.state, job=HandoverJob(phase=phase, chips=record.chips))
            return
        if record != self._record:
            self._record, self._first_step = record, seen.step
            self._take([JobHappened(event=JobEvent.STARTED, chips=record.chips)], now_s)
        if phase.alive:
            self._take([JobHappened(event=JobEvent.HEARD, heard_s=seen.heard_s)], now_s)
            if phase is JobPhase.RUNNING and self.state.job.phase is JobPhase.STARTING:
                self._take([JobHappened(event=JobEvent.RAN)], now_s)
            if self._first_step is None:
                self._first_step = seen.step
            elif seen.step is not None and seen.step > self._first_step:
                self._take([JobHappened(event=JobEvent.STEPPED)], now_s)
                self.job_failure = None
        elif self.state.job.phase.alive:
            words = " ".join(seen.said.split()) or "it ended without a word"
            end = JobEvent(phase)  # the event of an end has its phase's name
            self._take([JobHappened(event=end, words=words)], now_s)
            if phase in (JobPhase.FAILED, JobPhase.CRASHED):
                count = self.state.job.starts.count
                self.job_failure = JobFailure(why=words, unix_s=now_s, count=count)


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
    lost = () if lease is None else tuple(set(lease.lost_chips) & set(group.chips))
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
