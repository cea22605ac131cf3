"""The training job as a process below the server: started, looked at, told to stop, ended.

Its directory says everything else. What is kept in memory here is about this server's own tries.
"""

import contextlib
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import psutil

from emulator.import_path import child_environment
from serving.policy.day_night.handover import Failures, JobObserved, JobPhase
from serving.server.day_night.handover_plan import JobSeen
from serving.server.day_night.job_failure import JobFailure
from serving.server.day_night.job_record import JobRecord, kill_job, read_record, write_record
from serving.server.training import job_status
from serving.server.training.job_status import JobStatus, read_status

OUTPUT: Final = "output"
"""What the job's process says; its log is its own."""

_LAST_WORDS_BYTES: Final = 4096


class JobProcess:
    """The job of one directory, which exists."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._starts = Failures()
        self.failure: JobFailure | None = None
        self._stop_asked_s: float | None = None
        self._ours: JobRecord | None = None  # the last one that was seen since this server began
        self._first_step: int | None = None
        self._judged = read_record(directory)  # how it ended was another server's affair

    def start(self, command: Sequence[str], chips: Sequence[int]) -> None:
        """Start `command` in a session of its own; raises OSError.

        `command[0]` is the path of a program.
        """
        launcher = [sys.executable, "-P", "-m", "serving.server.day_night.job_launcher"]
        output, created = str(self.directory / OUTPUT), os.O_WRONLY | os.O_CREAT | os.O_APPEND
        pid = os.posix_spawn(
            sys.executable,
            [*launcher, str(os.getpid()), *command],
            child_environment(),
            file_actions=[
                (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                (os.POSIX_SPAWN_OPEN, 1, output, created, 0o644),
                (os.POSIX_SPAWN_DUP2, 1, 2),
            ],
            setsid=True,
        )
        write_record(self.directory, JobRecord.of(pid, chips))
        self._stop_asked_s = None

    @property
    def pid(self) -> int | None:
        """The number of its process while it runs."""
        record = read_record(self.directory)
        return record.pid if record is not None and record.running else None

    def ask_stop(self, now_s: float) -> None:
        """Tell it to finish its step, save and end."""
        record = read_record(self.directory)
        process = None if record is None else record.process()
        if process is not None:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(signal.SIGTERM)
            self._stop_asked_s = now_s

    def kill(self) -> None:
        """End it and its processes now; blocks for a moment."""
        kill_job(self.directory)

    def forgive(self) -> None:
        """Try it anew, because somebody wants it; what made it fail stays known."""
        self._starts = Failures()

    def seen(self, now_s: float) -> JobSeen:
        """The job as it is, by the wall's Unix time; a new failure is counted."""
        record, status = read_record(self.directory), self.status()
        if record is None:
            return JobSeen(observed=JobObserved(starts=self._starts), chips=())
        mine = status if status is not None and status.pid == record.pid else None
        if record.running:
            phase = JobPhase.SAVING if self._stop_asked_s is not None else _phase_of_running(mine)
            self._note_progress(record, mine)
        else:
            phase = _phase_of_ended(mine)
            self._note_end(record, phase, now_s, "" if mine is None else mine.message)
        observed = JobObserved(
            phase=phase,
            heard_s=max(record.started_s, 0.0 if mine is None else _written_s(self.directory)),
            stop_asked_s=self._stop_asked_s if phase.alive else None,
            starts=self._starts,
        )
        return JobSeen(observed=observed, chips=record.chips)

    def _note_progress(self, record: JobRecord, status: JobStatus | None) -> None:
        """A step that is done ends the row of failures."""
        if record != self._ours:
            self._ours, self._first_step = record, None
        if status is None:
            return
        if self._first_step is None:
            self._first_step = status.step
        if status.step > self._first_step:
            self._starts, self.failure = Failures(), None

    def _note_end(self, record: JobRecord, phase: JobPhase, now_s: float, said: str) -> None:
        if record == self._judged:
            return
        self._judged = record
        if phase in (JobPhase.CRASHED, JobPhase.FAILED):
            self._starts = Failures(count=self._starts.count + 1, last_s=now_s)
            self.failure = JobFailure(
                why=" ".join((said or self.last_words() or "it ended without a word").split()),
                unix_s=now_s,
                count=self._starts.count,
            )

    def status(self) -> JobStatus | None:
        """What the job has last written; None before it has written anything."""
        return read_status(self.directory)

    def last_words(self) -> str:
        """The last line that its process said; empty when there is none."""
        try:
            with (self.directory / OUTPUT).open("rb") as file:
                file.seek(max(0, file.seek(0, os.SEEK_END) - _LAST_WORDS_BYTES))
                lines = file.read().decode(errors="replace").split("\n")
        except FileNotFoundError:
            return ""
        return next((line.strip() for line in reversed(lines) if line.strip()), "")


def _phase_of_running(status: JobStatus | None) -> JobPhase:
    if status is None or status.phase is job_status.TrainingPhase.STARTING:
        return JobPhase.STARTING
    return JobPhase.RUNNING


def _phase_of_ended(status: JobStatus | None) -> JobPhase:
    """How a process ended that is gone, by its own last word."""
    match None if status is None else status.phase:
        case job_status.TrainingPhase.STOPPED:
            return JobPhase.STOPPED
        case job_status.TrainingPhase.DONE:
            return JobPhase.FINISHED
        case job_status.TrainingPhase.FAILED:
            return JobPhase.FAILED
    return JobPhase.CRASHED


def _written_s(directory: Path) -> float:
    """When the job last wrote its status, Unix time; 0 before it has."""
    try:
        return (directory / job_status.STATUS_FILE).stat().st_mtime
    except FileNotFoundError:
        return 0.0
