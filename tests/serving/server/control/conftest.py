from collections.abc import Iterator

import pytest

from serving.server.control.control_address import ControlAddress
from serving.server.control.control_client import ControlClient
from tests.serving.server.control.small_engine import SmallEngine, connected, control_server
from tests.serving.server.day_night.conftest import directory, lender

__all__ = ["address", "client", "directory", "engine", "lender"]  # shared with day_night


@pytest.fixture
def engine() -> SmallEngine:
    return SmallEngine()


@pytest.fixture
def address(engine: SmallEngine) -> Iterator[ControlAddress]:
    with control_server(engine) as listening:
        yield listening


@pytest.fixture
def client(address: ControlAddress) -> Iterator[ControlClient]:
    with connected(address) as made:
        yield made
