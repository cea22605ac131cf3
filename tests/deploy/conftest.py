"""One Prometheus that scrapes the live server, for all files here; it ends with the last test."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from serving.access.control_key import find_control_key
from tests.e2e.server_process import HOST, ServerProcess
from tests.prometheus_server import DEPLOYED, PrometheusServer
from tests.system_programs import program


@pytest.fixture(scope="package")
def key(live_server: ServerProcess) -> str:
    found = find_control_key(live_server.control_port, live_server.own_environment)
    assert found is not None
    return found


@pytest.fixture(scope="package")
def prometheus_program() -> Path:
    """Prometheus itself, required before an engine starts."""
    return program("prometheus")


@pytest.fixture(scope="package")
def live_prometheus(
    prometheus_program: Path, live_server: ServerProcess, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[PrometheusServer]:
    """A real Prometheus that scrapes `live_server` every second, with deploy's rules."""
    target = f"{HOST}:{live_server.port}"
    folder = tmp_path_factory.mktemp("prometheus")
    with PrometheusServer(DEPLOYED, targets=[target], folder=folder) as prometheus:
        prometheus.wait_targets_up()
        yield prometheus
