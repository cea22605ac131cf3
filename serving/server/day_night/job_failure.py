"""A training job's last failure: its cause, and the next attempt.

It is kept until the job has completed a step again.
"""

from dataclasses import dataclass
from datetime import UTC, datetime

from serving.policy.day_night.handover import HandoverLimits, JobPhase, backoff_s
from serving.policy.day_night.handover_machine import HandoverJob


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFailure:
    """One unrequested end of the job.

    Attributes:
        why: its message, one line.
        unix_s: when it was seen.
        count: failures in a row, including this one.
    """

    why: str
    unix_s: float
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NextTry:
    """The response to a failure; `unix_s` is when a start is due."""

    words: str
    unix_s: float | None = None


def next_try(
    job: HandoverJob, *, wanted: bool, checkpoint_step: int | None, limits: HandoverLimits
) -> NextTry:
    """The next action on a failed job; `wanted`: some group trains."""
    if job.phase.alive:
        return NextTry(words="it has been started again")
    if job.phase is JobPhase.FAILED:
        return NextTry(
            words="it is not started again, for it would end the same way: its chips go back to "
            "serving"
        )
    if job.starts.given_up(limits):
        return NextTry(
            words=f"after {job.starts.count} failures in a row it is not started again until "
            "somebody asks: its chips go back to serving"
        )
    if not wanted:
        return NextTry(words="no chips are wanted for it now")
    start = "from its beginning" if checkpoint_step is None else f"from step {checkpoint_step}"
    wait_s = backoff_s(job.starts.count, limits) if job.starts.count else 0.0
    return NextTry(words=f"it is started again {start}", unix_s=job.starts.last_s + wait_s)


def failure_words(failure: JobFailure, following: NextTry) -> str:
    """One line: when, why, and the next attempt."""
    times = "" if failure.count == 1 else f", {failure.count} times in a row"
    due = "" if not following.unix_s else f" at {wall_time(following.unix_s)}"
    return f"failed at {wall_time(failure.unix_s)}{times}: {failure.why}; {following.words}{due}"


def wall_time(unix_s: float) -> str:
    """UTC, to the second."""
    return datetime.fromtimestamp(unix_s, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
