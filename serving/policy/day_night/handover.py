"""Tables of the hand-over: the phases of a group and of its job, and every legal event.

A group of chips is SERVING, DRAINING, TRAINING, RESTORING, or out for MAINTENANCE, which an
operator begins and ends. TRAINING means that the group is leased, whether its job runs or not. An
event without an entry in `TRANSITIONS` is an error. `handover_machine` joins groups and job.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from emulator.errors import ConfigError, UltraServeError


class HandoverPhase(StrEnum):
    """Phase of a group of chips."""

    SERVING = "serving"
    DRAINING = "draining"
    TRAINING = "training"
    RESTORING = "restoring"
    MAINTENANCE = "maintenance"  # out of service, with no job


CHANGING_HANDS: Final = (HandoverPhase.DRAINING, HandoverPhase.RESTORING)
"""Phases that end by themselves: chips leave the engine, or return to it."""


class HandoverEvent(StrEnum):
    """Events of a group, first those of a quiet night in order."""

    DRAIN = "drain"  # asked for, and it fits
    VACATED = "vacated"  # its requests and experts are elsewhere, its processes have ended
    EMPTIED = "emptied"  # the same, of a group that was drained for maintenance
    RESUME = "resume"  # asked for, its job is gone
    RESTORED = "restored"  # weights are read, experts balanced, a step was warm

    REFUSED = "refused"  # an action that cannot be done now; its words have the figures
    CANCELLED = "cancelled"  # asked back while it drained
    DRAIN_FAILED = "drain_failed"  # what was to take its experts or requests no longer can
    CHIP_LOST = "chip_lost"  # a chip of this group
    SENT_BACK = "sent_back"  # a chip was lost on the way back from maintenance
    RESTORE_FAILED = "restore_failed"  # its processes did not start or read their weights


class JobPhase(StrEnum):
    """Phase of the training job, by its process and its directory."""

    ABSENT = "absent"  # never started
    STARTING = "starting"
    RUNNING = "running"
    SAVING = "saving"  # was asked to stop, and writes its checkpoint
    STOPPED = "stopped"  # ended as asked, with a checkpoint
    FINISHED = "finished"  # did all its steps
    FAILED = "failed"  # ended and says that another start would end the same way
    CRASHED = "crashed"  # ended without a word; its newest whole checkpoint counts

    @property
    def alive(self) -> bool:
        """Whether a process holds the job's chips."""
        return self in _ALIVE


_ALIVE: Final = (JobPhase.STARTING, JobPhase.RUNNING, JobPhase.SAVING)


class JobEvent(StrEnum):
    """Events of the job."""

    STARTED = "started"
    HEARD = "heard"  # a sign of life
    RAN = "ran"  # its start is over
    STEPPED = "stepped"  # it has done a step since its start, which forgives earlier failures
    STOP_ASKED = "stop_asked"
    STOPPED = "stopped"
    FINISHED = "finished"
    FAILED = "failed"
    CRASHED = "crashed"
    FORGIVEN = "forgiven"  # a user asks for it anew


def _transitions() -> dict[tuple[HandoverPhase, HandoverEvent], HandoverPhase]:
    at, on = HandoverPhase, HandoverEvent
    table = {
        at.SERVING: {on.DRAIN: at.DRAINING, on.CHIP_LOST: at.SERVING},
        # Back to SERVING before the chips were empty: the ranks open again where they are.
        at.DRAINING: {
            on.VACATED: at.TRAINING,
            on.EMPTIED: at.MAINTENANCE,
            on.CANCELLED: at.SERVING,
            on.DRAIN_FAILED: at.SERVING,
            on.CHIP_LOST: at.SERVING,  # the engine's recovery goes on with what is left
        },
        # A lost chip ends the job; the group stays out.
        at.TRAINING: {on.RESUME: at.RESTORING, on.CHIP_LOST: at.TRAINING},
        # Half-started processes end; the group is out of service until it is resumed again.
        at.RESTORING: {
            on.RESTORED: at.SERVING,
            on.CHIP_LOST: at.TRAINING,
            on.RESTORE_FAILED: at.TRAINING,
            on.SENT_BACK: at.MAINTENANCE,
        },
        at.MAINTENANCE: {on.RESUME: at.RESTORING, on.CHIP_LOST: at.MAINTENANCE},
    }
    refused = {(phase, on.REFUSED): phase for phase in at}
    return refused | {
        (phase, event): after for phase, row in table.items() for event, after in row.items()
    }


TRANSITIONS: Final[Mapping[tuple[HandoverPhase, HandoverEvent], HandoverPhase]] = MappingProxyType(
    _transitions()
)


def _job_transitions() -> dict[tuple[JobPhase, JobEvent], JobPhase]:
    at, on = JobPhase, JobEvent
    ends = {on(end): end for end in (at.STOPPED, at.FINISHED, at.FAILED, at.CRASHED)}
    table = {(phase, on.FORGIVEN): phase for phase in at}
    for phase in at:
        if not phase.alive:
            table[phase, on.STARTED] = at.STARTING
            continue
        runs = at.SAVING if phase is at.SAVING else at.RUNNING
        table |= {(phase, on.RAN): runs, (phase, on.STEPPED): runs, (phase, on.HEARD): phase}
        table |= {(phase, on.STOP_ASKED): at.SAVING}
        table |= {(phase, end): after for end, after in ends.items()}
    return table


JOB_TRANSITIONS: Final[Mapping[tuple[JobPhase, JobEvent], JobPhase]] = MappingProxyType(
    _job_transitions()
)


class HandoverError(UltraServeError):
    """An illegal event in this phase of a group or job; definite: nothing has changed."""

    def __init__(self, phase: HandoverPhase | JobPhase, event: HandoverEvent | JobEvent) -> None:
        pairs = (*TRANSITIONS, *JOB_TRANSITIONS)
        possible = ", ".join(known for at, known in pairs if at is phase)
        subject = "job" if isinstance(phase, JobPhase) else "group"
        super().__init__(f"a {subject} that is {phase} cannot take {event}: expected {possible}")
        self.phase = phase
        self.event = event

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.phase, self.event)


def transition(phase: HandoverPhase, event: HandoverEvent) -> HandoverPhase:
    """The phase of a group after an event; raises HandoverError for an illegal one."""
    after = TRANSITIONS.get((phase, event))
    if after is None:
        raise HandoverError(phase, event)
    return after


class Action(StrEnum):
    """Actions on a group or on the job; each may be repeated without harm."""

    DRAIN = "drain"  # ask the engine for a lease
    CANCEL = "cancel"  # ask for a draining group back
    RESUME = "resume"  # give the chips back to the engine, which reads weights
    START_JOB = "start_job"  # from the newest whole checkpoint, if there is one
    STOP_JOB = "stop_job"  # finish the step, write a checkpoint, end
    KILL_JOB = "kill_job"  # end now; what is after the newest checkpoint is lost


@dataclass(frozen=True, slots=True, kw_only=True)
class HandoverLimits:
    """Timeouts and retries, in seconds of the machine's clock.

    `stop_s`: from asking a job to stop until it is killed; `silent_s`: without a sign of life until
    it is killed; `backoff_s`: after a first failure, doubled by each further one up to
    `backoff_max_s`; `attempts_max`: failures in a row after which drains and starts are given up;
    ways back never are. Raises ConfigError for values out of range.
    """

    stop_s: float = 60.0
    silent_s: float = 120.0
    backoff_s: float = 5.0
    backoff_max_s: float = 300.0
    attempts_max: int = 5

    def __post_init__(self) -> None:
        for name in ("stop_s", "silent_s", "backoff_s"):
            if not getattr(self, name) >= 0:
                raise ConfigError(name, getattr(self, name), ">= 0 seconds")
        if not self.backoff_max_s >= self.backoff_s:
            expected = f">= backoff_s, {self.backoff_s:g}"
            raise ConfigError("backoff_max_s", self.backoff_max_s, expected)
        if self.attempts_max < 1:
            raise ConfigError("attempts_max", self.attempts_max, ">= 1")


@dataclass(frozen=True, slots=True, kw_only=True)
class Failures:
    """Failures in a row since the last success; time and message of the last."""

    count: int = 0
    last_s: float = 0.0
    words: str = ""

    def __post_init__(self) -> None:
        if self.count < 0:
            raise ConfigError("count", self.count, ">= 0")

    def then(self, now_s: float, words: str = "") -> "Failures":
        """One more failure, now."""
        return Failures(count=self.count + 1, last_s=now_s, words=words)

    def given_up(self, limits: HandoverLimits) -> bool:
        """Whether no attempt is left."""
        return self.count >= limits.attempts_max

    def may_try(self, now_s: float, limits: HandoverLimits) -> bool:
        """Whether the backoff is over and an attempt is left."""
        return not self.given_up(limits) and self.has_waited(now_s, limits)

    def has_waited(self, now_s: float, limits: HandoverLimits) -> bool:
        """Whether the backoff is over."""
        return now_s >= self.again_s(limits)

    def again_s(self, limits: HandoverLimits) -> float:
        """When the backoff ends; -inf without a failure."""
        return self.last_s + backoff_s(self.count, limits) if self.count else float("-inf")


def backoff_s(failures: int, limits: HandoverLimits) -> float:
    """Seconds to wait after this many failures in a row."""
    # 2 ** 30 waits are beyond any limit; a float must not overflow before the minimum is taken.
    return min(limits.backoff_s * 2.0 ** min(failures - 1, 30), limits.backoff_max_s)
