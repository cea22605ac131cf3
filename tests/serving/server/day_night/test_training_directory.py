import time
from pathlib import Path

import pytest

from emulator.errors import ConfigError
from serving.policy.day_night.handover import JobPhase
from serving.server.day_night.job_process import JobProcess
from serving.server.day_night.job_record import held_directory
from tests.serving.server.day_night.lending_engine import job_command


def test_one_server_at_a_time_has_it(tmp_path: Path) -> None:
    path = tmp_path / "new" / "training"
    with (
        held_directory(path, save_s=0.0),
        pytest.raises(ConfigError, match="expected a directory in which no other server trains"),
        held_directory(path, save_s=0.0),
    ):
        raise AssertionError
    with held_directory(path, save_s=0.0):
        assert path.is_dir()


@pytest.mark.process
def test_a_job_that_was_left_in_it_has_ended_by_then(directory: Path) -> None:
    job = JobProcess(directory)
    job.start(job_command(directory)((0,), 10.0), (0,))
    while job.seen().phase is not JobPhase.RUNNING:
        time.sleep(0.01)  # another process is at work
    with held_directory(directory, save_s=20.0):
        assert job.pid is None
        assert (directory / "saved").exists()


def test_what_is_no_directory_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    with (
        pytest.raises(ConfigError, match="train_dir="),
        held_directory(tmp_path / "file", save_s=0),
    ):
        raise AssertionError
