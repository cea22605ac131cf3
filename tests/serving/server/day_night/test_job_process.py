"""The job's process: whose it is, how it ends, and that it does not outlive its parent."""

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from serving.policy.day_night.handover import HandoverLimits, JobPhase
from serving.server.day_night.job_process import NICENESS, JobProcess
from serving.server.day_night.job_record import (
    JobRecord,
    end_job,
    kill_job,
    read_record,
    write_record,
)
from serving.server.day_night.live_handover import LiveHandover
from tests.e2e.hostile_directory import fill_with_modules, imported_in
from tests.serving.server.day_night.lending_engine import job_command

pytestmark = pytest.mark.process

NOW_S = 1e9


def looking(job: JobProcess) -> Callable[[], LiveHandover]:
    """A server's memory of a job, which looks at it whenever it is asked for."""
    handover = LiveHandover(chips=4, group_chips=2, limits=HandoverLimits())

    def look() -> LiveHandover:
        handover.see([], job.seen(), now_s=NOW_S, emulated_s=0.0)
        return handover

    return look


def start(directory: Path, how: str = "works") -> JobProcess:
    job = JobProcess(directory)
    job.start(job_command(directory, how)((2, 3), 10.0), (2, 3))
    return job


def wait(condition: Callable[[], bool], *, wall_s: float = 20) -> None:
    end_s = time.monotonic() + wall_s
    while not condition():
        assert time.monotonic() < end_s
        time.sleep(0.01)  # another process is at work


def phase(job: JobProcess) -> JobPhase:
    return job.seen().phase


def test_a_job_from_its_start_to_its_end(directory: Path) -> None:
    assert phase(JobProcess(directory)) is JobPhase.ABSENT
    job = start(directory)
    assert phase(job) is JobPhase.STARTING  # at once, before it has said anything
    wait(lambda: phase(job) is JobPhase.RUNNING)
    record = job.seen().record
    assert record is not None
    assert record.chips == (2, 3)
    assert job.pid is not None
    process = psutil.Process(job.pid)
    assert process.nice() == NICENESS
    assert os.getsid(job.pid) == job.pid  # a terminal's Ctrl-C does not reach it
    job.ask_stop()
    wait(lambda: not phase(job).alive)
    assert phase(job) is JobPhase.STOPPED
    assert job.pid is None
    assert not process.is_running() or process.status() == psutil.STATUS_ZOMBIE


def test_it_gets_no_file_of_the_server_s(directory: Path) -> None:
    read, write = os.pipe()
    os.set_inheritable(write, True)
    job = start(directory)
    wait(lambda: phase(job) is JobPhase.RUNNING)
    os.close(write)

    assert os.read(read, 1) == b""  # nobody else holds the other end
    os.close(read)


def test_a_crash_is_counted_once_and_a_step_forgives_it(directory: Path) -> None:
    job = JobProcess(directory)
    look = looking(job)
    look()
    job.start(job_command(directory, "dies")((2, 3), 10.0), (2, 3))
    wait(lambda: look().state.job.phase is JobPhase.CRASHED)
    for _ in range(2):
        assert look().state.job.starts.count == 1
    failure = look().job_failure
    assert failure is not None
    assert (failure.why, failure.count) == ("it ended without a word", 1)
    job.start(job_command(directory)((2, 3), 10.0), (2, 3))
    wait(lambda: look().state.job.starts.count == 0)
    assert look().job_failure is None


def test_how_another_server_s_job_ended_is_not_counted(directory: Path) -> None:
    first = start(directory, "dies")
    wait(lambda: phase(first) is JobPhase.CRASHED)

    seen = looking(JobProcess(directory))().state.job
    assert (seen.phase, seen.starts.count) == (JobPhase.CRASHED, 0)


def test_a_number_that_is_used_again_is_another_process(directory: Path) -> None:
    mine = JobRecord.of(os.getpid(), (0,))
    assert mine.running
    write_record(directory, JobRecord(pid=mine.pid, started_s=mine.started_s - 60, chips=(0,)))
    record = read_record(directory)
    assert record is not None
    assert not record.running
    kill_job(directory)  # and so this test goes on


@pytest.mark.parametrize("how", ["works", "deaf"])
def test_a_job_that_was_left_behind_is_ended(directory: Path, how: str) -> None:
    start(directory, how)
    job = JobProcess(directory)
    wait(lambda: phase(job) is JobPhase.RUNNING)

    assert end_job(directory, save_s=0.5)
    assert job.pid is None
    assert (directory / "saved").exists() == (how == "works")
    assert not end_job(directory, save_s=0.5)


PARENT = textwrap.dedent(
    """
    import sys, time
    from pathlib import Path
    from serving.server.day_night.job_process import JobProcess
    from tests.serving.server.day_night.lending_engine import job_command
    directory = Path(sys.argv[1])
    JobProcess(directory).start(job_command(directory)((0,), 10.0), (0,))
    time.sleep(60)
    """
)


def test_a_job_whose_server_is_killed_saves_and_ends(directory: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", PARENT, str(directory)]) as parent:
        job = JobProcess(directory)
        wait(lambda: phase(job) is JobPhase.RUNNING)
        parent.send_signal(signal.SIGKILL)
    wait(lambda: not phase(job).alive, wall_s=10)

    assert phase(job) is JobPhase.STOPPED
    assert (directory / "saved").exists()


def test_what_it_said_last_is_known(directory: Path) -> None:
    job = JobProcess(directory)
    assert job.last_words() == ""
    job.start(job_command(directory, "refuses")((0,), 10.0), (0,))
    wait(lambda: phase(job) is JobPhase.FAILED)

    assert job.last_words() == "train: learning_rate=0: expected more"


def test_a_job_imports_nothing_of_the_directory_that_its_server_stands_in(
    directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hostile = tmp_path / "hostile"
    hostile.mkdir()
    fill_with_modules(hostile)
    monkeypatch.chdir(hostile)
    job = start(directory)
    wait(lambda: phase(job) is JobPhase.RUNNING)
    job.kill()

    # The launcher is ours; the job's own command here is a program that imports what it finds.
    assert not [line for line in imported_in(hostile) if "child_launcher" in line]
