"""A server's training job on leased chips as a child process: command, start, observe, stop, kill.

All of its state is in the job's directory.
"""

import contextlib
import os
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import psutil

from serving.policy.day_night.handover import JobPhase
from serving.process.child_launcher import launched
from serving.server.day_night.day_night_settings import DayNightSettings, TrainingSettings
from serving.server.day_night.job_record import JobRecord, kill_job, read_record, write_record
from serving.server.day_night.live_handover import JobSeen
from serving.server.training.job_status import STATUS_FILE, JobStatus, TrainingPhase, read_status
from startup.import_path import child_environment

NICENESS: Final = 10
"""Serving goes first on shared cores."""

OUTPUT: Final = "output"
"""The process's output, besides its log."""

_LAST_WORDS_BYTES: Final = 4096

_ENDS: Final[dict[TrainingPhase | None, JobPhase]] = {
    TrainingPhase.STOPPED: JobPhase.STOPPED,
    TrainingPhase.DONE: JobPhase.FINISHED,
    TrainingPhase.FAILED: JobPhase.FAILED,
}
"""By an ended process's last phase; any other has crashed."""


class JobProcess:
    """The job of one existing directory."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def start(self, command: Sequence[str], chips: Sequence[int]) -> None:
        """Start `command` in a session of its own, by a program's path; raises OSError."""
        output, created = str(self.directory / OUTPUT), os.O_WRONLY | os.O_CREAT | os.O_APPEND
        pid = os.posix_spawn(
            sys.executable,
            launched(command, niceness=NICENESS),
            child_environment(),
            file_actions=[
                (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                (os.POSIX_SPAWN_OPEN, 1, output, created, 0o644),
                (os.POSIX_SPAWN_DUP2, 1, 2),
            ],
            setsid=True,
        )
        write_record(self.directory, JobRecord.of(pid, chips))

    @property
    def pid(self) -> int | None:
        """Its process's id while it runs."""
        record = read_record(self.directory)
        return record.pid if record is not None and record.running else None

    def ask_stop(self) -> None:
        """Let it finish its step, save and end."""
        record = read_record(self.directory)
        process = None if record is None else record.process()
        if process is not None:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Kill it and its children; blocks for a moment."""
        kill_job(self.directory)

    def seen(self) -> JobSeen:
        """The job's state now, by Unix time."""
        record, status = read_record(self.directory), self.status()
        if record is None:
            return JobSeen()
        mine = status if status is not None and status.pid == record.pid else None
        phase = _phase(mine, running=record.running)
        failed = phase in (JobPhase.CRASHED, JobPhase.FAILED)
        said = "" if mine is None else mine.message
        return JobSeen(
            record=record,
            phase=phase,
            heard_s=max(record.started_s, 0.0 if mine is None else _written_s(self.directory)),
            step=None if mine is None else mine.step,
            said=(said or self.last_words()) if failed else "",
        )

    def status(self) -> JobStatus | None:
        """Its last status, or None."""
        return read_status(self.directory)

    def last_words(self) -> str:
        """The last line of its output, or empty."""
        try:
            with (self.directory / OUTPUT).open("rb") as file:
                file.seek(max(0, file.seek(0, os.SEEK_END) - _LAST_WORDS_BYTES))
                lines = file.read().decode(errors="replace").split("\n")
        except FileNotFoundError:
            return ""
        return next((line.strip() for line in reversed(lines) if line.strip()), "")


def _phase(status: JobStatus | None, *, running: bool) -> JobPhase:
    said = None if status is None else status.phase
    if not running:
        return _ENDS.get(said, JobPhase.CRASHED)
    return JobPhase.STARTING if said in (None, TrainingPhase.STARTING) else JobPhase.RUNNING


def _written_s(directory: Path) -> float:
    try:
        return (directory / STATUS_FILE).stat().st_mtime
    except FileNotFoundError:
        return 0.0


SEQUENCE_TOKENS: Final = 256
BATCH_SEQUENCES: Final = 16
STEPS: Final = 1_000_000
"""More than any night takes."""

SAVE_EVERY_STEPS: Final = 50
"""The most that a killed job loses; fewer before the first checkpoint of all, see `JobSpec`."""

LEARNING_RATE: Final = 5e-4
"""*Assumed*: a quarter of fresh weights' rate, since training continues every night."""


def job_command(
    training: TrainingSettings, chips: Sequence[int], *, chips_max: int, dilation: float
) -> list[str]:
    """The job on `chips` of the partition, at the engine's pace.

    A batch has a sequence for each of the most lendable chips, so that it stays the same on fewer.
    """
    sequences = max(BATCH_SEQUENCES, chips_max)
    rate = LEARNING_RATE if training.learning_rate is None else training.learning_rate
    command = [sys.executable, "-P", "-m", "serving.main", "train"]
    command += ["--weights", str(training.weights_dir), "--dir", str(training.directory)]
    command += ["--system", training.system, "--chips", str(len(chips))]
    command += ["--first-chip", str(training.first_chip + min(chips))]
    command += ["--batch-tokens", str(sequences * SEQUENCE_TOKENS)]
    command += ["--sequence-tokens", str(SEQUENCE_TOKENS), "--steps", str(STEPS)]
    command += ["--learning-rate", f"{rate:g}", "--schedule", "constant"]
    command += ["--save-every", str(SAVE_EVERY_STEPS), "--pace", training.pace]
    command += ["--calibration", training.calibration]
    for each in training.assumptions:
        command += ["--assumption", each]
    if dilation:
        command += ["--dilation", f"{dilation!r}"]
    if training.model is not None:
        command += ["--model", training.model]
    if training.lnc is not None:
        command += ["--lnc", str(training.lnc)]
    if training.corpus_dir is not None:
        command += ["--corpus", str(training.corpus_dir)]
    if training.ray_address is not None:
        command += ["--ray-address", training.ray_address]
    return command


def job_commands(settings: DayNightSettings) -> Callable[[Sequence[int], float], list[str]]:
    """A server's job commands, by chips of the partition and the engine's dilation."""
    chips_max = settings.lend_groups * settings.group_chips

    def command(chips: Sequence[int], dilation: float) -> list[str]:
        return job_command(settings.training, chips, chips_max=chips_max, dilation=dilation)

    return command
