from collections.abc import Iterator
from pathlib import Path

import pytest

from serving.server.day_night.job_record import kill_job
from tests.serving.server.day_night.lending_engine import LendingEngine


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Path]:
    """A job's directory; kills the job after the test."""
    yield tmp_path
    kill_job(tmp_path)


@pytest.fixture
def lender() -> LendingEngine:
    return LendingEngine()
