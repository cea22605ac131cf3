"""Hand-overs in virtual time: which groups serve, leave, train and return.

`serving.policy.day_night.handover_machine` decides, as for a running server; every action succeeds
after the cost model's time. Time advances from event to event, independent of the walk's interval.
"""

from collections import Counter
from dataclasses import dataclass
from typing import Final

import numpy as np

from emulator.errors import ConfigError
from serving.analysis.day.training_yield import GroupHandover, TrainingYield
from serving.policy.day_night.handover import (
    Action,
    HandoverEvent,
    HandoverLimits,
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

_NEVER: Final = float("inf")


@dataclass(slots=True, kw_only=True)
class GroupTimes:
    """Group-seconds by activity, tokens trained and energy."""

    serving_s: float = 0.0
    leaving_s: float = 0.0
    restoring_s: float = 0.0
    paused_s: float = 0.0  # its job saves or starts
    training_s: float = 0.0
    idle_s: float = 0.0  # leased without a job
    chips_at_work_s: float = 0.0
    tokens: float = 0.0
    joules: float = 0.0  # of all chips that neither serve nor leave


@dataclass(slots=True, kw_only=True)
class HandoverTotals:
    """Hand-overs so far: groups that left and came back, and job starts."""

    left: int = 0
    came_back: int = 0
    job_starts: int = 0
    seconds: float = 0.0  # group-seconds on the way
    joules: float = 0.0  # in these
    tokens_lost: float = 0.0  # that were not trained while the job saved and started
    tokens_undone: float = 0.0  # trained, and lost with a job that was killed
    left_rate_per_s: float = 0.0  # sum of the request rates of the groups that left


class LeasedGroups:
    """Mutable; all groups serve at first. Times ascend."""

    def __init__(
        self,
        *,
        trained: TrainingYield,
        handover: GroupHandover,
        group_idle_watts: float,
        limits: HandoverLimits = LIMITS,
    ) -> None:
        self._trained = trained
        self._handover = handover
        self._idle_watts = group_idle_watts
        self._limits = limits
        works = np.flatnonzero(trained.tokens_per_s)
        self.state = HandoverState(
            groups=tuple(HandoverGroup(number=n, chips=(n,)) for n in range(trained.groups)),
            job_groups_min=int(works[0]) if len(works) else trained.groups + 1,
        )
        self._now_s = 0.0
        self._arrive_s: dict[int, float] = {}  # of groups on their way, by number
        self._job_ready_s = _NEVER  # when a start or a save is over
        self._group_rate_per_s = 0.0
        self._leaving_rate_per_s: dict[int, float] = {}  # of each group as it began to leave
        self._unsaved_tokens = 0.0
        self.totals = HandoverTotals()

    @property
    def serving_or_coming(self) -> int:
        """A policy's serving groups: with those that return or wait for the job to save."""
        away = (HandoverPhase.DRAINING, HandoverPhase.MAINTENANCE)
        there = [group for group in self.state.groups if group.phase not in away]
        return sum(
            group.phase is not HandoverPhase.TRAINING or group.desired is HandoverPhase.SERVING
            for group in there
        )

    def want(self, serving: int, *, group_rate_per_s: float = 0.0) -> bool:
        """Request `serving` groups, at `group_rate_per_s` each; returns whether that is new."""
        groups = len(self.state.groups)
        if not 0 <= serving <= groups:
            raise ConfigError("serving", serving, f"0 to {groups} groups")
        self._group_rate_per_s = group_rate_per_s
        before, desired = self.state.desired, wishes(self.state, serving)
        if desired == before:
            return False
        self.take(Desired(phases=desired))
        return desired.count(HandoverPhase.SERVING) != before.count(HandoverPhase.SERVING)

    def take(self, *events: Happened) -> None:
        """Apply events now, then every action that is due."""
        for event in events:
            self._happen(event)
        while steps := due(self.state, now_s=self._now_s, limits=self._limits):
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
        limit_s = next_limit_s(self.state, now_s=self._now_s, limits=self._limits)
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
            case Action.KILL_JOB:
                return JobHappened(event=JobEvent.CRASHED, words="killed")
        assert step.group is not None
        serving = self.state.phases.count(HandoverPhase.SERVING)
        event = {
            Action.DRAIN: HandoverEvent.DRAIN if serving > 1 else HandoverEvent.REFUSED,
            Action.CANCEL: HandoverEvent.CANCELLED,
            Action.RESUME: HandoverEvent.RESUME,
        }[step.action]
        return GroupHappened(group=step.group, event=event)

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
        if event is HandoverEvent.VACATED:
            self.totals.left += 1
            self.totals.left_rate_per_s += self._leaving_rate_per_s[number]
        self.totals.came_back += event is HandoverEvent.RESTORED
        match self.state.groups[number].phase:
            case HandoverPhase.DRAINING:
                self._arrive_s[number] = self._now_s + self._handover.drain_s
                self._leaving_rate_per_s[number] = self._group_rate_per_s
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
            if event is JobEvent.CRASHED:
                self.totals.tokens_undone += self._unsaved_tokens
            if not job.phase.alive:
                self._unsaved_tokens = 0.0

    def _pass(self, seconds: float, times: GroupTimes) -> None:
        if seconds <= 0:
            return
        trained, totals = self._trained, self.totals
        counts, job = Counter(self.state.phases), self.state.job
        at_job = len(job.chips) if job.phase.alive else 0
        leaving, restoring = counts[HandoverPhase.DRAINING], counts[HandoverPhase.RESTORING]
        serving = counts[HandoverPhase.SERVING]
        idle = len(self.state.groups) - serving - leaving - restoring - at_job
        times.serving_s += serving * seconds
        times.leaving_s += leaving * seconds
        times.restoring_s += restoring * seconds
        times.idle_s += idle * seconds
        handover = self._handover
        watts = restoring * _rate(handover.restore_joules, handover.restore_s)
        if job.phase is JobPhase.RUNNING:
            times.training_s += at_job * seconds
            times.chips_at_work_s += float(trained.chips_at_work[at_job]) * seconds
            trained_tokens = float(trained.tokens_per_s[at_job]) * seconds
            times.tokens += trained_tokens
            self._unsaved_tokens += trained_tokens
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
