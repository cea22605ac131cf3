"""The hand-over of all groups and of the job that trains on them: one pure state machine.

`step` takes the state, one event and the time, and returns the next state and the actions due. The
server's controller drives it by the engine and the job's process; `ultraserve day` in virtual time,
by the cost model. An action stays due until an event reports it done, so a driver that failed
half-way asks again.

Rules:
- No chip is in two roles: a group leaves SERVING's side through VACATED alone, a job has chips of
  TRAINING groups alone, and a group resumes only when no job has its chips.
- One job trains on all leased groups: it starts when no further group is on its way, and restarts
  from its checkpoint when its chips change.
- A returning group waits for the job to save; a job slower than `stop_s`, or silent for `silent_s`,
  is killed.
- Draining groups are asked back, which cancels the drain, before training ones.
- Refused and failed hand-overs are retried with exponential backoff; drains and starts are given up
  after `attempts_max`, ways back never. A new wish, or success, resets the backoff.
- Groups in maintenance are left alone.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from emulator.errors import ConfigError
from serving.policy.day_night.handover import (
    JOB_TRANSITIONS,
    Action,
    Failures,
    HandoverError,
    HandoverEvent,
    HandoverLimits,
    HandoverPhase,
    JobEvent,
    JobPhase,
    transition,
)

_S, _D, _T = HandoverPhase.SERVING, HandoverPhase.DRAINING, HandoverPhase.TRAINING
_OF_GROUP: Final = (Action.DRAIN, Action.CANCEL, Action.RESUME)
_FAILURES: Final = (
    HandoverEvent.REFUSED,
    HandoverEvent.DRAIN_FAILED,
    HandoverEvent.RESTORE_FAILED,
)
_NO_FAILURES: Final = Failures()
_STAY: Final = {_D: 1, _T: 2}
"""Order of asking back: groups that leave, at no cost, before those that train."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HandoverGroup:
    """Chips that change hands together; `desired` is SERVING or TRAINING.

    `failures`: drains while it serves, returns while it is leased. `lost_chips`: failed by now, or
    not leased with the others. `in_maintenance`: with an operator, or on the way there or back.
    """

    number: int
    chips: tuple[int, ...]
    phase: HandoverPhase = _S
    desired: HandoverPhase = _S
    lost_chips: tuple[int, ...] = ()
    in_maintenance: bool = False
    failures: Failures = _NO_FAILURES

    @property
    def working_chips(self) -> tuple[int, ...]:
        """Chips that a job may have while it is leased."""
        return tuple(chip for chip in self.chips if chip not in self.lost_chips)


@dataclass(frozen=True, slots=True, kw_only=True)
class HandoverJob:
    """The training job; `chips` are those of its last start.

    `heard_s`: last sign of life; `stop_asked_s`: when it was asked to stop; `starts`: failed starts
    and crashes since its last finished step.
    """

    phase: JobPhase = JobPhase.ABSENT
    chips: tuple[int, ...] = ()
    heard_s: float = 0.0
    stop_asked_s: float | None = None
    starts: Failures = _NO_FAILURES


@dataclass(frozen=True, slots=True, kw_only=True)
class HandoverState:
    """All groups, by number, and the job, which needs `job_chips_min` chips to start."""

    groups: tuple[HandoverGroup, ...]
    job: HandoverJob = HandoverJob()
    job_chips_min: int = 1

    @property
    def phases(self) -> tuple[HandoverPhase, ...]:
        """Phase of each group."""
        return tuple(group.phase for group in self.groups)

    @property
    def desired(self) -> tuple[HandoverPhase, ...]:
        """Desired phase of each group."""
        return tuple(group.desired for group in self.groups)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupHappened:
    """An event of one group; `chips`: all lost by then; `maintenance` marks its DRAIN."""

    group: int
    event: HandoverEvent
    chips: tuple[int, ...] = ()
    maintenance: bool = False
    words: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobHappened:
    """An event of the job; `chips` are those that it starts with, `heard_s` a sign of life."""

    event: JobEvent
    chips: tuple[int, ...] = ()
    heard_s: float = 0.0
    words: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Desired:
    """Desired phases by group number, SERVING or TRAINING, of a policy or a user."""

    phases: tuple[HandoverPhase, ...]

    def __post_init__(self) -> None:
        for phase in self.phases:
            if phase not in (_S, _T):
                raise ConfigError("desired", phase, "serving or training")


Happened = GroupHappened | JobHappened | Desired


@dataclass(frozen=True, slots=True, kw_only=True)
class HandoverStep:
    """One action due: on `group`, or, if None, on the job, which starts on `chips`."""

    action: Action
    group: int | None = None
    chips: tuple[int, ...] = ()


def step(
    state: HandoverState, event: Happened, *, now_s: float, limits: HandoverLimits
) -> tuple[HandoverState, tuple[HandoverStep, ...]]:
    """The state after `event`, and the actions due; raises HandoverError for an illegal event."""
    after = take(state, event, now_s=now_s)
    return after, due(after, now_s=now_s, limits=limits)


# What events change.


def take(state: HandoverState, event: Happened, *, now_s: float) -> HandoverState:
    """The state after `event`; raises HandoverError for an illegal one."""
    match event:
        case Desired(phases=phases):
            pairs = zip(state.groups, phases, strict=True)
            return replace(state, groups=tuple(_wish(group, wish) for group, wish in pairs))
        case GroupHappened(group=number):
            group = _after(state.groups[number], event, now_s)
            return replace(
                state, groups=(*state.groups[:number], group, *state.groups[number + 1 :])
            )
        case JobHappened():
            return replace(state, job=_job_after(state.job, event, now_s))


def _wish(group: HandoverGroup, wish: HandoverPhase) -> HandoverGroup:
    if wish is group.desired:
        return group
    return replace(group, desired=wish, failures=_NO_FAILURES)


def _after(group: HandoverGroup, happened: GroupHappened, now_s: float) -> HandoverGroup:
    event, before = happened.event, group.phase
    phase = transition(before, event)
    failed = event in _FAILURES or (event is HandoverEvent.CHIP_LOST and phase is not before)
    if group.in_maintenance:
        failed = False  # an operator's hand-over, which is not tried again
    failures = group.failures.then(now_s, happened.words) if failed else group.failures
    serves = phase is _S
    lost = happened.chips if event is HandoverEvent.CHIP_LOST else group.lost_chips
    return replace(
        group,
        phase=phase,
        failures=_NO_FAILURES if phase is group.desired else failures,
        lost_chips=() if serves else lost,
        in_maintenance=not serves
        and (group.in_maintenance or happened.maintenance or phase is HandoverPhase.MAINTENANCE),
    )


def _job_after(job: HandoverJob, happened: JobHappened, now_s: float) -> HandoverJob:
    event = happened.event
    phase = JOB_TRANSITIONS.get((job.phase, event))
    if phase is None:
        raise HandoverError(job.phase, event)
    starts = job.starts
    if event in (JobEvent.STEPPED, JobEvent.FORGIVEN):
        starts = _NO_FAILURES
    elif event in (JobEvent.FAILED, JobEvent.CRASHED):
        starts = starts.then(now_s, happened.words)
    heard_s = max(job.heard_s, happened.heard_s)
    if event is JobEvent.STARTED:
        return HandoverJob(phase=phase, chips=happened.chips, heard_s=now_s, starts=starts)
    asked_s = job.stop_asked_s
    if event is JobEvent.STOP_ASKED and asked_s is None:
        asked_s = now_s
    return replace(
        job,
        phase=phase,
        starts=starts,
        heard_s=heard_s,
        stop_asked_s=asked_s if phase.alive else None,
    )


def wishes(state: HandoverState, serving: int) -> tuple[HandoverPhase, ...]:
    """Desired phase of each group when `serving` of them serve.

    Groups that are out stay out first, then the last ones leave. Groups in maintenance are to
    serve, once an operator returns them.
    """
    there = [group for group in state.groups if not group.in_maintenance]
    by_stay = sorted(there, key=lambda group: (_STAY.get(group.phase, 0), group.number))
    leave = {group.number for group in by_stay[serving:]}
    return tuple(_T if group.number in leave else _S for group in state.groups)


# What is due.


def due(state: HandoverState, *, now_s: float, limits: HandoverLimits) -> tuple[HandoverStep, ...]:
    """At most one action for each group, and at most one for the job, which comes first."""
    steps: list[HandoverStep] = []
    asked: set[Action] = set()
    coming = False
    groups = [group for group in state.groups if not group.in_maintenance]
    for group in groups:
        job = job_of(state.job, group)
        wanted = reachable(group, job, limits)
        action = _next_action(wanted, group, job, now_s=now_s, limits=limits)
        coming |= action is Action.DRAIN or (group.phase is _D and wanted is _T)
        if action in _OF_GROUP:
            steps.append(HandoverStep(action=action, group=group.number))
        elif action is not None:
            asked.add(action)
    return (*_job_step(state, groups, asked, coming=coming), *steps)


def job_of(job: HandoverJob, group: HandoverGroup) -> HandoverJob:
    """The job as this group sees it: absent while it runs on other chips alone."""
    if job.phase.alive and not set(group.chips) & set(job.chips):
        return replace(job, phase=JobPhase.ABSENT, stop_asked_s=None)
    return job


def reachable(group: HandoverGroup, job: HandoverJob, limits: HandoverLimits) -> HandoverPhase:
    """The phase to work towards: SERVING if training is desired but impossible, without working
    chips or after the job finished or failed for good.
    """
    over = job.phase in (JobPhase.FINISHED, JobPhase.FAILED)
    hopeless = not group.working_chips or (job.starts.given_up(limits) and not job.phase.alive)
    return _S if over or hopeless else group.desired


def _next_action(
    wanted: HandoverPhase,
    group: HandoverGroup,
    job: HandoverJob,
    *,
    now_s: float,
    limits: HandoverLimits,
) -> Action | None:
    if job.phase.alive and (group.phase is not _T or wanted is _S):
        return _end_job(job, now_s=now_s, limits=limits)
    match group.phase:
        case HandoverPhase.SERVING:
            drains = wanted is _T and group.failures.may_try(now_s, limits)
            return Action.DRAIN if drains else None
        case HandoverPhase.DRAINING:
            return Action.CANCEL if wanted is _S else None
        case HandoverPhase.TRAINING if wanted is _S:
            # A way back is never given up: what refuses it, such as an engine that sleeps, may end.
            return Action.RESUME if group.failures.has_waited(now_s, limits) else None
        case HandoverPhase.TRAINING:
            return _while_leased(job, now_s=now_s, limits=limits)
    return None  # the engine, or an operator, goes on, and it may not be called off half-way


def _while_leased(job: HandoverJob, *, now_s: float, limits: HandoverLimits) -> Action | None:
    if not job.phase.alive:
        return Action.START_JOB if job.starts.may_try(now_s, limits) else None
    if job.phase is JobPhase.SAVING:  # it is let to, and starts again from its checkpoint
        return _end_job(job, now_s=now_s, limits=limits)
    return Action.KILL_JOB if _silent(job, now_s, limits) else None


def _end_job(job: HandoverJob, *, now_s: float, limits: HandoverLimits) -> Action | None:
    if _silent(job, now_s, limits):
        return Action.KILL_JOB
    if job.stop_asked_s is None:
        return Action.STOP_JOB
    return Action.KILL_JOB if now_s >= job.stop_asked_s + limits.stop_s else None


def _silent(job: HandoverJob, now_s: float, limits: HandoverLimits) -> bool:
    return now_s >= job.heard_s + limits.silent_s


def _job_step(
    state: HandoverState, groups: Sequence[HandoverGroup], asked: set[Action], *, coming: bool
) -> tuple[HandoverStep, ...]:
    """The one action on the job that its groups ask for."""
    job = state.job
    working = {chip for group in groups for chip in group.working_chips}
    if job.phase.alive and not working.issuperset(job.chips):
        # What a lost chip held is gone, so there is nothing whole to save.
        return (HandoverStep(action=Action.KILL_JOB),)
    for action in (Action.KILL_JOB, Action.STOP_JOB):
        if action in asked:
            return (HandoverStep(action=action),)
    if Action.START_JOB not in asked or coming:
        return ()
    if job.phase.alive:  # on fewer chips than it could have
        saving = job.phase is JobPhase.SAVING
        return () if saving else (HandoverStep(action=Action.STOP_JOB),)
    members = [group for group in groups if group.phase is _T and group.desired is _T]
    chips = tuple(chip for group in members for chip in group.working_chips)
    if len(chips) < state.job_chips_min:
        return ()
    return (HandoverStep(action=Action.START_JOB, chips=chips),)


def next_limit_s(state: HandoverState, *, now_s: float, limits: HandoverLimits) -> float:
    """When time alone next makes an action due, after `now_s`; inf if never."""
    job = state.job
    times = [job.starts.again_s(limits), *(one.failures.again_s(limits) for one in state.groups)]
    if job.phase.alive:
        times.append(job.heard_s + limits.silent_s)
    if job.stop_asked_s is not None:
        times.append(job.stop_asked_s + limits.stop_s)
    return min((each for each in times if each > now_s), default=float("inf"))
