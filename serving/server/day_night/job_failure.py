"""How a training job last failed, and what follows: why, what is tried next, and when by the wall.

A failure is remembered until the job has done a step again; asking for it anew does not erase it.
"""

from dataclasses import dataclass
from datetime import UTC, datetime

from serving.policy.day_night.handover import HandoverLimits, JobPhase, backoff_s
from serving.policy.day_night.handover_machine import HandoverJob


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFailure:
    """One end of the job that was not asked for.

    Attributes:
        why: what it said, or that it said nothing: one line.
        unix_s: when it was seen.
        count: failures in a row, this one among them.
    """

    why: str
    unix_s: float
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NextTry:
    """What follows a failure; `unix_s` is when a start is due, None where none is."""

    words: str
    unix_s: float | None = None


def next_try(
    job: HandoverJob, *, wanted: bool, checkpoint_step: int | None, limits: HandoverLimits
) -> NextTry:
    """What the controller does next about a job that has failed; `wanted`: some group trains."""
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
    """One line: when, why, what follows and when."""
    times = "" if failure.count == 1 else f", {failure.count} times in a row"
    due = "" if not following.unix_s else f" at {wall_time(following.unix_s)}"
    return f"failed at {wall_time(failure.unix_s)}{times}: {failure.why}; {following.words}{due}"


def wall_time(unix_s: float) -> str:
    """A moment for a reader, to the second."""
    return datetime.fromtimestamp(unix_s, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
