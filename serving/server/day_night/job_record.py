"""A training directory: the record of its job's process, and the lock of its server.

A process id and its start time identify a process. The record outlives it, so readers check whether
it still runs.
"""

import contextlib
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

import msgspec
import psutil

from serving.server.training.atomic_file import locked_directory, replace_file

_FILE: Final = "process.json"
_LOCK: Final = "server.lock"
_SAME_START_S: Final = 1.0
"""The start time depends on a clock that may be set; ids are reused much later."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRecord:
    """A process, and its chips of the partition.

    `started_s` is psutil's `create_time`, Unix time.
    """

    pid: int
    started_s: float
    chips: tuple[int, ...]

    @classmethod
    def of(cls, pid: int, chips: Sequence[int]) -> Self:
        """The process with this id now; raises psutil.NoSuchProcess."""
        return cls(pid=pid, started_s=psutil.Process(pid).create_time(), chips=tuple(chips))

    def process(self) -> psutil.Process | None:
        """The process, or None after its end, also when its id was reused."""
        try:
            process = psutil.Process(self.pid)
            if abs(process.create_time() - self.started_s) > _SAME_START_S:
                return None
            if process.status() != psutil.STATUS_ZOMBIE:
                return process
        except psutil.NoSuchProcess:
            return None
        with contextlib.suppress(ChildProcessError):  # another process's child is not ours to reap
            os.waitpid(self.pid, os.WNOHANG)
        return None

    @property
    def running(self) -> bool:
        """Whether it has not ended."""
        return self.process() is not None


def write_record(directory: Path, record: JobRecord) -> None:
    """Write `record` atomically."""
    replace_file(directory / _FILE, msgspec.json.encode(record))


def read_record(directory: Path) -> JobRecord | None:
    """The directory's record; None if absent or not ours."""
    try:
        return msgspec.json.decode((directory / _FILE).read_bytes(), type=JobRecord)
    except (FileNotFoundError, msgspec.DecodeError):
        return None


def end_job(directory: Path, *, save_s: float) -> bool:
    """Let the job save and end; kill it after `save_s` wall seconds.

    Blocks. Returns whether one was running.
    """
    record = read_record(directory)
    process = None if record is None else record.process()
    if record is None or process is None:
        return False
    with contextlib.suppress(psutil.NoSuchProcess):
        process.terminate()
    end_s = time.monotonic() + save_s
    while record.running and time.monotonic() < end_s:
        time.sleep(0.05)  # polls a process that may be another's child
    kill_job(directory)
    return True


def kill_job(directory: Path) -> None:
    """Kill the job, if it runs, and its children."""
    record = read_record(directory)
    process = None if record is None else record.process()
    if record is None or process is None:
        return
    family = [process]
    with contextlib.suppress(psutil.NoSuchProcess):
        family += process.children(recursive=True)
    for each in family:
        with contextlib.suppress(psutil.NoSuchProcess):
            each.kill()
    psutil.wait_procs(family, timeout=5.0)
    record.process()  # reaps it


@contextlib.contextmanager
def held_directory(path: Path, *, save_s: float) -> Iterator[None]:
    """Lock `path`, created if absent, against other servers; the kernel frees a dead server's lock.

    An earlier server's job has `save_s` wall seconds to save and end. Raises ConfigError for a
    directory not writable, or locked.
    """
    with locked_directory(path, _LOCK, field="train_dir", use="no other server trains"):
        end_job(path, save_s=save_s)
        yield
