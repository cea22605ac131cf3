"""A port without calls, and its clients."""

import pytest

from serving.server.connections.stream_turns import PortTurns
from tests.serving.server.connections.gated_clients import Clock, Connect, Connection


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def port(clock: Clock) -> PortTurns:
    return PortTurns(clock)


@pytest.fixture
def connect(port: PortTurns, clock: Clock) -> Connect:
    return lambda: Connection(port, clock)
