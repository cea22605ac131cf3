"""One engine for the tests of leases and of published weights: its start takes longest."""

from collections.abc import Iterator

import pytest

from tests.simulation.troubled_engine import TroubledEngine, running_engine


@pytest.fixture(scope="package")
def two_blocks() -> Iterator[TroubledEngine]:
    """Two blocks of two ranks; every test leaves it idle, whole, and on the weights it began on."""
    with running_engine({"chips": 4, "ep": 2}) as engine:
        yield engine
