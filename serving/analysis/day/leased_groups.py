"""Hand-overs in virtual time: which groups serve, leave, train and return.

`serving.policy.day_night.handover_machine` decides, as for a running server; every action succeeds
after the cost model's time, and none is killed that saves. Time advances from event to event,
independent of the walk's interval. Groups that go the same way are one group of the machine, with
their numbers as its chips.
"""

from collections import Counter
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Final

from emulator.errors import ConfigError
from serving.analysis.day.training_yield import GroupHandover, TrainingYield
from serving.policy.day_night.handover import (
    Action,
    Failures,
    HandoverEvent,
    HandoverPhase,
    JobEvent,
    JobPhase,
)
from serving.policy.day_night.handover_machine import (
    Desired,
    GroupHappened,
    HandoverGroup,
    HandoverState,
    HandoverStep,
    Happened,
    JobHappened,
    due,
    next_limit_s,
    take,
    wishes,
)
from serving.simulator.simulated_job import LIMITS

_TRAINING: Final = HandoverPhase.TRAINING
_NEVER: Final = float("inf")
_TIME_DIGITS: Final = 6  # of seconds, within which two states are one


@dataclass(slots=True, kw_only=True)
class GroupTimes:
    """Group-seconds by activity, tokens trained and energy.

    `parts`: for how many seconds how many groups served, one after another.
    """

    serving_s: float = 0.0
    leaving_s: float = 0.0
    restoring_s: float = 0.0
    paused_s: float = 0.0  # its job saves or starts
    training_s: float = 0.0
    idle_s: float = 0.0  # leased without a job
    chips_at_work_s: float = 0.0
    tokens: float = 0.0
    joules: float = 0.0  # of all chips that neither serve nor leave
    parts: list[tuple[float, int]] = field(default_factory=list)

    def serve(self, groups: int, seconds: float) -> None:
        """Count so many groups that serve."""
        self.serving_s += groups * seconds
        if self.parts and self.parts[-1][1] == groups:
            seconds += self.parts.pop()[0]
        self.parts.append((seconds, groups))

    @property
    def shares(self) -> list[tuple[float, int]]:
        """Of the whole time, how much each of the `parts` is, and its groups."""
        whole_s = sum(seconds for seconds, _ in self.parts)
        return [(seconds / whole_s, groups) for seconds, groups in self.parts]


@dataclass(slots=True, kw_only=True)
class HandoverTotals:
    """Hand-overs so far: groups that left and came back, and job starts."""

    left: int = 0
    came_back: int = 0
    job_starts: int = 0
    seconds: float = 0.0  # group-seconds on the way
    joules: float = 0.0  # in these
    tokens_lost: float = 0.0  # that were not trained while the job saved and started
    tokens_undone: float = 0.0  # trained or put out by a tenant, and lost

    def add(self, other: "HandoverTotals", times: int = 1) -> None:
        """Count these too, so many times."""
        self.left += times * other.left
        self.came_back += times * other.came_back
        self.job_starts += times * other.job_starts
        self.seconds += times * other.seconds
        self.joules += times * other.joules
        self.tokens_lost += times * other.tokens_lost
        self.tokens_undone += times * other.tokens_undone


class LeasedGroups:
    """Mutable; all groups serve at first. Times ascend."""

    def __init__(
        self,
        *,
        trained: TrainingYield,
        handover: GroupHandover,
        group_idle_watts: float,
    ) -> None:
        self._trained = trained
        self._handover = handover
        self._idle_watts = group_idle_watts
        self.state = HandoverState(
            groups=tuple(HandoverGroup(number=n, chips=(n,)) for n in range(trained.groups)),
            job_chips_min=trained.job_groups_min,
        )
        self._now_s = 0.0
        self._arrive_s: dict[int, float] = {}  # of groups on their way, by number
        self._job_ready_s = _NEVER  # when a start or a save is over
        self.totals = HandoverTotals()
        self.left: list[tuple[float, int]] = []
        """When groups began to leave that have left, and how many."""

    def begin(self) -> "LeasedGroups":
        """A copy that goes its own way, and counts from now on."""
        begun = copy(self)
        begun._arrive_s = dict(self._arrive_s)
        begun.totals, begun.left = HandoverTotals(), []
        return begun

    @property
    def now_s(self) -> float:
        """Where `advance` came to."""
        return self._now_s

    @property
    def each(self) -> HandoverState:
        """The state by single groups, whose number is their one chip."""
        groups = sorted(
            (
                replace(group, number=chip, chips=(chip,))
                for group in self.state.groups
                for chip in group.chips
            ),
            key=lambda group: group.number,
        )
        return replace(self.state, groups=tuple(groups))

    @property
    def key(self) -> tuple[object, ...]:
        """Equal for two that go the same way when the same is wanted of them from now on."""
        job = self.state.job
        alive = job.phase.alive
        groups = tuple((kind, len(list(same))) for kind, same in groupby(self._kinds()))
        at_job = len(job.chips) if alive else 0
        starts = self._tried(job.starts)
        phase = job.phase if alive else None
        return (groups, phase, at_job, self._left_s(self._job_ready_s), starts)

    def _kinds(self) -> list[tuple[object, ...]]:
        """All that decides where a group goes, of each single one by its number."""
        job = self.state.job
        at_job = frozenset(job.chips) if job.phase.alive else frozenset()
        kinds: list[tuple[object, ...]] = [()] * self._trained.groups
        for group in self.state.groups:
            arrives_s = self._left_s(self._arrive_s.get(group.number, _NEVER))
            kind = (group.phase, group.desired, arrives_s, self._tried(group.failures))
            for chip in group.chips:
                kinds[chip] = (*kind, chip in at_job)
        return kinds

    def _left_s(self, at_s: float) -> float:
        return round(at_s - self._now_s, _TIME_DIGITS)

    def _tried(self, failures: Failures) -> tuple[int, float]:
        return failures.count, self._left_s(failures.last_s) if failures.count else 0.0

    @property
    def serving_or_coming(self) -> int:
        """A policy's serving groups: with those that return or wait for the job to save."""
        away = (HandoverPhase.DRAINING, HandoverPhase.MAINTENANCE)
        return sum(
            len(group.chips)
            for group in self.state.groups
            if group.phase not in away
            and (
                group.phase is not HandoverPhase.TRAINING or group.desired is HandoverPhase.SERVING
            )
        )

    @property
    def serving(self) -> int:
        """Groups that serve now."""
        return self._count(HandoverPhase.SERVING)

    def want(self, serving: int) -> bool:
        """Request `serving` groups, one at least, as in an engine; whether that is a new number."""
        groups = self._trained.groups
        if not 1 <= serving <= groups:
            raise ConfigError("serving", serving, f"1 to {groups} groups")
        each = self.each
        before, desired = each.desired, wishes(each, serving)
        if desired == before:
            return False
        self.take(Desired(phases=self._divided(desired)))
        return desired.count(HandoverPhase.SERVING) != before.count(HandoverPhase.SERVING)

    def _divided(self, desired: Sequence[HandoverPhase]) -> tuple[HandoverPhase, ...]:
        """Join neighbours that are alike and of which the same is desired; returns what, of each.

        The last one that serves stays by itself: if all are to leave, it is refused alone.
        """
        of_chip = {chip: group for group in self.state.groups for chip in group.chips}
        serving = [chip for chip, one in of_chip.items() if one.phase is HandoverPhase.SERVING]
        last = max(serving) if all(desired[chip] is _TRAINING for chip in serving) else None
        alone = (chip == last for chip in range(len(desired)))
        kinds = list(zip(self._kinds(), desired, alone, strict=True))
        groups: list[HandoverGroup] = []
        arrive_s: dict[int, float] = {}
        for _, alike in groupby(range(len(kinds)), key=kinds.__getitem__):
            chips = tuple(alike)
            old, number = of_chip[chips[0]], len(groups)
            groups.append(replace(old, number=number, chips=chips))
            if old.number in self._arrive_s:
                arrive_s[number] = self._arrive_s[old.number]
        self.state = replace(self.state, groups=tuple(groups))
        self._arrive_s = arrive_s
        return tuple(desired[group.chips[0]] for group in groups)

    def take(self, *events: Happened) -> None:
        """Apply events now, then every action that is due."""
        for event in events:
            self._happen(event)
        while steps := due(self.state, now_s=self._now_s, limits=LIMITS):
            for step in steps:
                self._happen(self._outcome(step))

    def advance(self, to_s: float) -> GroupTimes:
        """Advance the time with its events; returns the groups' times."""
        times = GroupTimes()
        while (at_s := self._next_s()) <= to_s:
            self._pass(at_s - self._now_s, times)
            self._now_s = at_s
            self.take(*self._arrivals())
        self._pass(to_s - self._now_s, times)
        self._now_s = to_s
        return times

    def _next_s(self) -> float:
        limit_s = next_limit_s(self.state, now_s=self._now_s, limits=LIMITS)
        return min([self._job_ready_s, limit_s, *self._arrive_s.values()])

    def _arrivals(self) -> list[Happened]:
        """Events due now: empty or ready groups, a started or saved job."""
        events: list[Happened] = []
        if self._job_ready_s <= self._now_s:
            saved = self.state.job.phase is JobPhase.SAVING
            events.append(JobHappened(event=JobEvent.STOPPED if saved else JobEvent.STEPPED))
        for number, at_s in self._arrive_s.items():
            if at_s <= self._now_s:
                group = self.state.groups[number]
                event = HandoverEvent.RESTORED
                if group.phase is HandoverPhase.DRAINING:
                    out = (HandoverEvent.VACATED, HandoverEvent.EMPTIED)
                    event = out[group.in_maintenance]
                events.append(GroupHappened(group=number, event=event))
        return events

    def _outcome(self, step: HandoverStep) -> Happened:
        """The immediate event of an action; as in an engine, the last serving group is kept."""
        match step.action:
            case Action.START_JOB:
                return JobHappened(event=JobEvent.STARTED, chips=step.chips)
            case Action.STOP_JOB:
                return JobHappened(event=JobEvent.STOP_ASKED)
            case Action.KILL_JOB:  # it has lost a chip, which no walk's does
                return JobHappened(event=JobEvent.CRASHED, words="killed")
        assert step.group is not None
        others = self.serving - len(self.state.groups[step.group].chips)
        event = {
            Action.DRAIN: HandoverEvent.DRAIN if others else HandoverEvent.REFUSED,
            Action.CANCEL: HandoverEvent.CANCELLED,
            Action.RESUME: HandoverEvent.RESUME,
        }[step.action]
        return GroupHappened(group=step.group, event=event)

    def _count(self, phase: HandoverPhase) -> int:
        return sum(len(group.chips) for group in self.state.groups if group.phase is phase)

    def _happen(self, event: Happened) -> None:
        was = self.state.job.phase
        self.state = take(self.state, event, now_s=self._now_s)
        match event:
            case GroupHappened(group=number):
                self._group_moved(number, event.event)
            case JobHappened():
                self._job_moved(event.event, was)

    def _group_moved(self, number: int, event: HandoverEvent) -> None:
        self._arrive_s.pop(number, None)
        count = len(self.state.groups[number].chips)
        if event is HandoverEvent.VACATED:
            self.totals.left += count
            self.left.append((self._now_s - self._handover.drain_s, count))
        if event is HandoverEvent.RESTORED:
            self.totals.came_back += count
        match self.state.groups[number].phase:
            case HandoverPhase.DRAINING:
                self._arrive_s[number] = self._now_s + self._handover.drain_s
            case HandoverPhase.RESTORING:
                self._arrive_s[number] = self._now_s + self._handover.restore_s

    def _job_moved(self, event: JobEvent, was: JobPhase) -> None:
        job = self.state.job
        if event is JobEvent.STARTED:
            self.totals.job_starts += 1
            self._job_ready_s = self._now_s + float(self._trained.start_s[len(job.chips)])
        elif event is JobEvent.STOP_ASKED:  # a job that starts has nothing to save
            saves = was is JobPhase.RUNNING
            save_s = saves * float(self._trained.save_s[len(job.chips)])
            self._job_ready_s = self._now_s + save_s
        elif job.phase is not was:
            self._job_ready_s = _NEVER

    def _pass(self, seconds: float, times: GroupTimes) -> None:
        if seconds <= 0:
            return
        trained, totals = self._trained, self.totals
        counts: Counter[HandoverPhase] = Counter()
        for group in self.state.groups:
            counts[group.phase] += len(group.chips)
        job = self.state.job
        at_job = len(job.chips) if job.phase.alive else 0
        leaving, restoring = counts[HandoverPhase.DRAINING], counts[HandoverPhase.RESTORING]
        serving = counts[HandoverPhase.SERVING]
        idle = trained.groups - serving - leaving - restoring - at_job
        times.serve(serving, seconds)
        times.leaving_s += leaving * seconds
        times.restoring_s += restoring * seconds
        times.idle_s += idle * seconds
        handover = self._handover
        watts = restoring * _rate(handover.restore_joules, handover.restore_s)
        if job.phase is JobPhase.RUNNING:
            times.training_s += at_job * seconds
            times.chips_at_work_s += float(trained.chips_at_work[at_job]) * seconds
            times.tokens += float(trained.tokens_per_s[at_job]) * seconds
            times.joules += float(trained.watts[at_job]) * seconds
        elif at_job:
            times.paused_s += at_job * seconds
            totals.tokens_lost += float(trained.tokens_per_s[at_job]) * seconds
            saves = job.phase is JobPhase.SAVING
            joules = (trained.save_joules if saves else trained.start_joules)[at_job]
            watts += _rate(joules, (trained.save_s if saves else trained.start_s)[at_job])
        times.joules += (watts + idle * self._idle_watts) * seconds
        totals.seconds += (leaving + restoring) * seconds
        totals.seconds += at_job * seconds if job.phase is not JobPhase.RUNNING else 0.0
        totals.joules += watts * seconds


def _rate(amount: float, seconds: float) -> float:
    return float(amount) / float(seconds) if seconds else 0.0
