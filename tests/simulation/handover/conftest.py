"""One engine for the tests of leases and of published weights, because its start takes longest."""

from collections.abc import Iterator

import pytest

from tests.simulation.troubled_engine import TroubledEngine, running_engine


@pytest.fixture(scope="package")
def two_blocks() -> Iterator[TroubledEngine]:
    """Two blocks of two ranks; every test leaves it idle, whole, and on its first weights."""
    with running_engine({"chips": 4, "ep": 2}) as engine:
        yield engine
