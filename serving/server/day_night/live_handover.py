"""The hand-over machine of a running server: its engine's leases, and what the job shows.

It adds the server's own attempts alone; the job's process and directory are the truth.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from serving.engine.handover_groups import HandoverGroups
from serving.policy.day_night.handover import HandoverLimits, JobEvent, JobPhase
from serving.policy.day_night.handover_machine import HandoverJob, JobHappened
from serving.server.day_night.job_failure import JobFailure
from serving.server.day_night.job_record import JobRecord
from serving.wire.machine_state import LeaseState


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


class LiveHandover(HandoverGroups):
    """Lives with its engine; never waits."""

    def __init__(self, *, chips: int, group_chips: int, limits: HandoverLimits) -> None:
        super().__init__(chips=chips, group_chips=group_chips, limits=limits)
        self.job_failure: JobFailure | None = None
        """The job's last failure, until it has done a step again."""
        self._record: JobRecord | None = None
        self._first_step: int | None = None
        self._looked = False

    def see(
        self, leases: Iterable[LeaseState], job: JobSeen, *, now_s: float, emulated_s: float
    ) -> None:
        """Turn changes since the last tick into events."""
        self.see_leases(leases, now_s=now_s)
        self._see_job(job, now_s)
        self._looked = True
        self.returns.note(self.state.groups, emulated_s)

    def forgive(self, *, now_s: float) -> None:
        """Let the job start at once; keeps its last failure."""
        self.happened(JobHappened(event=JobEvent.FORGIVEN), now_s=now_s)

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
            self.happened(JobHappened(event=JobEvent.STARTED, chips=record.chips), now_s=now_s)
        if phase.alive:
            self.happened(JobHappened(event=JobEvent.HEARD, heard_s=seen.heard_s), now_s=now_s)
            if phase is JobPhase.RUNNING and self.state.job.phase is JobPhase.STARTING:
                self.happened(JobHappened(event=JobEvent.RAN), now_s=now_s)
            if self._first_step is None:
                self._first_step = seen.step
            elif seen.step is not None and seen.step > self._first_step:
                self.happened(JobHappened(event=JobEvent.STEPPED), now_s=now_s)
                self.job_failure = None
        elif self.state.job.phase.alive:
            words = " ".join(seen.said.split()) or "it ended without a word"
            end = JobEvent(phase)  # the event of an end has its phase's name
            self.happened(JobHappened(event=end, words=words), now_s=now_s)
            if phase in (JobPhase.FAILED, JobPhase.CRASHED):
                count = self.state.job.starts.count
                self.job_failure = JobFailure(why=words, unix_s=now_s, count=count)
