"""What rooms share: checkpoints, one live server, property tests without a stopwatch."""

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from hypothesis import settings

from tests.e2e.server_process import HOST, ServerProcess
from tests.emulator.chip.random_checkpoints import SHAPES, RandomCheckpoints
from tests.prometheus_server import DEPLOYED, PrometheusServer
from tests.seen_server import seen_server_started
from tests.system_programs import program

# As in a chip's process, and before numpy is imported: one thread, and no waiting for a second
# one that another program keeps from running.
for variable in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(variable, "1")

# How long an example takes says more about the machine than about the code. An example that
# failed is printed with what it takes to repeat it. In CI too examples are new ones every time:
# Hypothesis' own profile for it would draw the same for ever.
settings.register_profile("house", settings.get_profile("default"), deadline=None, print_blob=True)
settings.load_profile("house")


@pytest.fixture(scope="session")
def small_checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Path]:
    """Directories of random Qwen3-MoE checkpoints by the names in `SHAPES`, made when asked for."""
    return RandomCheckpoints(tmp_path_factory.mktemp("checkpoints"), SHAPES)


@pytest.fixture(scope="session")
def seen_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A live server for every test that looks at one; see tests/seen_server.py."""
    with seen_server_started(tmp_path_factory.mktemp("seen")) as server:
        yield server


@pytest.fixture(scope="session")
def prometheus_program() -> Path:
    """Prometheus itself; asked for before an engine is started for it."""
    return program("prometheus")


@pytest.fixture(scope="session")
def seen_prometheus(
    prometheus_program: Path, seen_server: ServerProcess, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[PrometheusServer]:
    """A real Prometheus that scrapes `seen_server` every second, with deploy's rules."""
    target = f"{HOST}:{seen_server.port}"
    folder = tmp_path_factory.mktemp("prometheus")
    with PrometheusServer(DEPLOYED, targets=[target], folder=folder) as prometheus:
        prometheus.wait_targets_up()
        yield prometheus
