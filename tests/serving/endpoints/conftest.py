from collections.abc import Iterator
from pathlib import Path

import pytest

from serving.endpoints.control_address import ControlAddress
from serving.endpoints.control_client import ControlClient
from serving.endpoints.job_record import kill_job
from tests.serving.endpoints.lending_engine import LendingEngine
from tests.serving.endpoints.small_engine import SmallEngine, control_server


@pytest.fixture
def engine() -> SmallEngine:
    return SmallEngine()


@pytest.fixture
def address(engine: SmallEngine) -> Iterator[ControlAddress]:
    with control_server(engine) as listening:
        yield listening


@pytest.fixture
def client(address: ControlAddress) -> Iterator[ControlClient]:
    with ControlClient(address, timeout_s=10.0) as connected:
        yield connected


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Path]:
    """A job's directory, whose job does not outlive the test."""
    yield tmp_path
    kill_job(tmp_path)


@pytest.fixture
def lender() -> LendingEngine:
    return LendingEngine()
