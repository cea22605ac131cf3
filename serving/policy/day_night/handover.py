"""The hand-over of a group of chips between serving and training: its table, and the next action.

A group is SERVING, DRAINING, TRAINING or RESTORING, or out for MAINTENANCE instead of training: of
that an operator decides alone, and the controller leaves such a group alone. `TRANSITIONS` is the
whole state machine: the engine takes every event through it, and an event that it does not hold is
an error. TRAINING means that the group is lent out, whether its job runs or not.

`next_action` is the controller's half, a reconcile loop without memory: from what is desired and
what is seen of the group and of its job it says the one thing to do now, or nothing. Every action
may be repeated without harm (a job's directory admits one process), so a controller that crashed
looks again and goes on.

No chip is ever in two hands: a group leaves SERVING's side only through VACATED, a job is started
only in TRAINING, and a group is resumed only when its job's process is gone.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from emulator.errors import ConfigError, UltraServeError


class Phase(StrEnum):
    """Where a group of chips is in the hand-over."""

    SERVING = "serving"
    DRAINING = "draining"
    TRAINING = "training"
    RESTORING = "restoring"
    MAINTENANCE = "maintenance"  # out of service, with no job


CHANGING_HANDS: Final = (Phase.DRAINING, Phase.RESTORING)
"""What goes on by itself: chips are on their way from the engine, or back to it."""


class Event(StrEnum):
    """What can happen to a group, in this order on a quiet night; a job's change no phase."""

    DRAIN = "drain"  # asked for, and it fits
    VACATED = "vacated"  # its requests and experts are elsewhere, its processes have ended
    EMPTIED = "emptied"  # the same, of a group that was drained for maintenance
    JOB_STARTED = "job_started"
    JOB_ENDED = "job_ended"  # stopped when told, or did all its steps
    RESUME = "resume"  # asked for, its job is gone
    RESTORED = "restored"  # weights are read, experts balanced, a step was warm

    REFUSED = "refused"  # a drain or a resume that cannot be, with the figures
    CANCELLED = "cancelled"  # asked back while it drains
    DRAIN_FAILED = "drain_failed"  # what was to take its experts or requests no longer can
    CHIP_LOST = "chip_lost"  # a chip of this group
    JOB_FAILED = "job_failed"  # could not start, or refused its settings
    JOB_DIED = "job_died"  # its process ended by itself
    SENT_BACK = "sent_back"  # a chip was lost on the way back from maintenance
    RESTORE_FAILED = "restore_failed"  # its processes did not start or read their weights
    ENGINE_RESTARTED = "engine_restarted"  # a new engine starts with all its chips


_S, _D, _T, _R = Phase.SERVING, Phase.DRAINING, Phase.TRAINING, Phase.RESTORING
_M = Phase.MAINTENANCE

TRANSITIONS: Final[Mapping[tuple[Phase, Event], Phase]] = MappingProxyType(
    {
        # The way there and back.
        (_S, Event.DRAIN): _D,
        (_D, Event.VACATED): _T,
        (_T, Event.JOB_STARTED): _T,
        (_T, Event.JOB_ENDED): _T,
        (_T, Event.RESUME): _R,
        (_R, Event.RESTORED): _S,
        # Out for maintenance, and back.
        (_D, Event.EMPTIED): _M,
        (_M, Event.RESUME): _R,
        (_M, Event.REFUSED): _M,
        (_M, Event.CHIP_LOST): _M,
        (_R, Event.SENT_BACK): _M,
        (_M, Event.ENGINE_RESTARTED): _S,
        # Refused before anything happened.
        (_S, Event.REFUSED): _S,
        (_T, Event.REFUSED): _T,
        # Back before the chips were empty: the ranks open again where they are.
        (_D, Event.CANCELLED): _S,
        (_D, Event.DRAIN_FAILED): _S,
        # A lost chip. While the group serves or drains it is the engine's fault recovery that goes
        # on, with what is left; while it is lent out the job dies of it, and the group stays out.
        (_S, Event.CHIP_LOST): _S,
        (_D, Event.CHIP_LOST): _S,
        (_T, Event.CHIP_LOST): _T,
        (_R, Event.CHIP_LOST): _T,
        # A job that fails leaves the group lent out: the controller starts it again or gives back.
        (_T, Event.JOB_FAILED): _T,
        (_T, Event.JOB_DIED): _T,
        # Half-started processes end; the group is out of service until it is resumed again.
        (_R, Event.RESTORE_FAILED): _T,
        # A new engine knows no leases; the server's start ended jobs that held chips.
        (_S, Event.ENGINE_RESTARTED): _S,
        (_D, Event.ENGINE_RESTARTED): _S,
        (_T, Event.ENGINE_RESTARTED): _S,
        (_R, Event.ENGINE_RESTARTED): _S,
    }
)


class HandoverError(UltraServeError):
    """An event that a group in this phase cannot meet; definite: the group is as it was."""

    def __init__(self, phase: Phase, event: Event) -> None:
        possible = ", ".join(known for at, known in TRANSITIONS if at is phase)
        super().__init__(f"a group that is {phase} cannot take {event}: expected {possible}")
        self.phase = phase
        self.event = event

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.phase, self.event)


def transition(phase: Phase, event: Event) -> Phase:
    """Return the phase after an event; raises HandoverError for one not in the table."""
    after = TRANSITIONS.get((phase, event))
    if after is None:
        raise HandoverError(phase, event)
    return after


class JobPhase(StrEnum):
    """What the controller sees of a group's training job: its process and its directory."""

    ABSENT = "absent"  # never started on these chips
    STARTING = "starting"
    RUNNING = "running"
    SAVING = "saving"  # was told to stop, and writes its checkpoint
    STOPPED = "stopped"  # ended as it was told, with a checkpoint
    FINISHED = "finished"  # did all its steps
    FAILED = "failed"  # ended and says that another start would end the same way
    CRASHED = "crashed"  # ended without a word; its newest whole checkpoint counts

    @property
    def alive(self) -> bool:
        """Whether a process holds the group's chips."""
        return self in (JobPhase.STARTING, JobPhase.RUNNING, JobPhase.SAVING)


class Action(StrEnum):
    """What the controller does to one group; each may be repeated without harm."""

    DRAIN = "drain"  # ask the engine for a lease
    CANCEL = "cancel"  # ask for a draining group back
    START_JOB = "start_job"  # from the newest whole checkpoint, if there is one
    STOP_JOB = "stop_job"  # finish the step, write a checkpoint, end
    KILL_JOB = "kill_job"  # end now; what is after the newest checkpoint is lost
    RESUME = "resume"  # give the chips back to the engine, which reads weights


@dataclass(frozen=True, slots=True, kw_only=True)
class HandoverLimits:
    """How long the controller waits, in seconds of the clock it is shown, and how often it tries.

    `stop_s`: from asking a job to stop until it is ended; `silent_s`: without a sign of life from a
    job until it is ended; `backoff_s`: after a first failure, doubled by each further one up to
    `backoff_max_s`; `attempts_max`: failures in a row after which no group is drained and no job
    started again; a way back is tried for ever.
    Raises ConfigError for a time below 0, a maximum below its start, and no attempt at all.
    """

    stop_s: float = 60.0
    silent_s: float = 120.0
    backoff_s: float = 5.0
    backoff_max_s: float = 300.0
    attempts_max: int = 5

    def __post_init__(self) -> None:
        for name in ("stop_s", "silent_s", "backoff_s"):
            if not getattr(self, name) >= 0:
                raise ConfigError(field=name, value=getattr(self, name), expected=">= 0 seconds")
        if not self.backoff_max_s >= self.backoff_s:
            expected = f">= backoff_s, {self.backoff_s:g}"
            raise ConfigError(field="backoff_max_s", value=self.backoff_max_s, expected=expected)
        if self.attempts_max < 1:
            raise ConfigError(field="attempts_max", value=self.attempts_max, expected=">= 1")


@dataclass(frozen=True, slots=True, kw_only=True)
class Failures:
    """Failures in a row since the last success, and when the last was; none by default."""

    count: int = 0
    last_s: float = 0.0

    def __post_init__(self) -> None:
        if self.count < 0:
            raise ConfigError(field="count", value=self.count, expected=">= 0")

    def given_up(self, limits: HandoverLimits) -> bool:
        """Whether there were too many to try again."""
        return self.count >= limits.attempts_max

    def may_try(self, now_s: float, limits: HandoverLimits) -> bool:
        """Whether the wait after the last failure is over and an attempt is left."""
        return not self.given_up(limits) and self.has_waited(now_s, limits)

    def has_waited(self, now_s: float, limits: HandoverLimits) -> bool:
        """Whether the wait after the last failure is over."""
        return self.count == 0 or now_s - self.last_s >= backoff_s(self.count, limits)


def backoff_s(failures: int, limits: HandoverLimits) -> float:
    """Return the wait after so many failures in a row, in seconds."""
    # 2 ** 30 waits are beyond any limit; a float must not overflow before the minimum is taken.
    return min(limits.backoff_s * 2.0 ** min(failures - 1, 30), limits.backoff_max_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupObserved:
    """A group as the engine tells of it.

    `handovers` counts refused or failed drains while it serves, and failed restores while it is
    lent out. `can_train` and `can_serve`: enough of its chips work for the job, and for a rank.
    """

    phase: Phase
    handovers: Failures = Failures()
    can_train: bool = True
    can_serve: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class JobObserved:
    """A group's job as its process and its directory show it, on the controller's clock.

    `heard_s`: when it last gave a sign of life, or was started; `stop_asked_s`: when it was told to
    stop, None when it was not or nobody remembers; `starts` counts failed starts and crashes since
    its last finished step.
    """

    phase: JobPhase = JobPhase.ABSENT
    heard_s: float = 0.0
    stop_asked_s: float | None = None
    starts: Failures = Failures()


def reachable(
    desired: Phase, group: GroupObserved, job: JobObserved, limits: HandoverLimits
) -> Phase:
    """Return the phase to work towards: SERVING when training is desired but cannot be.

    It cannot be without chips for it, after the job did all its steps or failed for good.
    Raises ConfigError for a phase that no group can stay in.
    """
    if desired not in (Phase.SERVING, Phase.TRAINING):
        raise ConfigError(field="desired", value=desired, expected="serving or training")
    over = job.phase in (JobPhase.FINISHED, JobPhase.FAILED)
    hopeless = not group.can_train or (job.starts.given_up(limits) and not job.phase.alive)
    return Phase.SERVING if over or hopeless else desired


def next_action(
    desired: Phase,
    group: GroupObserved,
    job: JobObserved,
    *,
    now_s: float,
    limits: HandoverLimits,
) -> Action | None:
    """Return what to do now towards `desired` (SERVING or TRAINING), or None to wait or rest.

    Raises ConfigError for a `desired` that no group can stay in.
    """
    wanted = reachable(desired, group, job, limits)
    if job.phase.alive and (group.phase is not Phase.TRAINING or wanted is Phase.SERVING):
        return _end_job(job, now_s=now_s, limits=limits)
    match group.phase:
        case Phase.SERVING:
            if wanted is Phase.TRAINING and group.handovers.may_try(now_s, limits):
                return Action.DRAIN
        case Phase.DRAINING:
            if wanted is Phase.SERVING:
                return Action.CANCEL
        case Phase.TRAINING:
            return _while_lent(wanted, group, job, now_s=now_s, limits=limits)
        case Phase.RESTORING | Phase.MAINTENANCE:
            pass  # the engine, or an operator, goes on, and it may not be called off half-way
    return None


def _while_lent(
    wanted: Phase,
    group: GroupObserved,
    job: JobObserved,
    *,
    now_s: float,
    limits: HandoverLimits,
) -> Action | None:
    if wanted is Phase.TRAINING:
        if job.phase.alive:
            # A job that was told to stop is let to; it is started again from its checkpoint.
            told = job.stop_asked_s is not None or job.phase is JobPhase.SAVING
            overdue = told and _end_job(job, now_s=now_s, limits=limits) is Action.KILL_JOB
            return Action.KILL_JOB if overdue or _silent(job, now_s, limits) else None
        return Action.START_JOB if job.starts.may_try(now_s, limits) else None
    # A way back is never given up: what refuses it, such as an engine that sleeps, may end.
    if group.can_serve and group.handovers.has_waited(now_s, limits):
        return Action.RESUME
    return None


def _end_job(job: JobObserved, *, now_s: float, limits: HandoverLimits) -> Action | None:
    if _silent(job, now_s, limits):
        return Action.KILL_JOB
    if job.stop_asked_s is not None:
        overdue = now_s - job.stop_asked_s >= limits.stop_s
        return Action.KILL_JOB if overdue else None
    # Nobody remembers having asked a job that saves, and asking again does no harm.
    return Action.STOP_JOB


def _silent(job: JobObserved, now_s: float, limits: HandoverLimits) -> bool:
    return now_s - job.heard_s >= limits.silent_s
