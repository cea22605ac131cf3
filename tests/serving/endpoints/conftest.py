from collections.abc import Iterator

import pytest

from serving.endpoints.control_address import ControlAddress
from serving.endpoints.control_client import ControlClient
from tests.serving.controller.conftest import directory, lender
from tests.serving.endpoints.small_engine import SmallEngine, connected, control_server

__all__ = ["address", "client", "directory", "engine", "lender"]  # both rooms share some


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
