"""`ultraserve serve --replicas 2 --ray-address`: a replica on each of two nodes, one of which goes.

Two nodes and two starts of an engine, and so slow; the placing is tested every day, by hand.
"""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from serving.main import main
from tests.e2e.server_process import ULTRASERVE, ServerProcess, started
from tests.e2e.test_replicas import key_file, metric, ready, replicas, set_environment, texts
from tests.e2e.tray import MODEL
from tests.emulator.actors.two_ray_nodes import HEAD, OTHER, TwoRayNodes, started_nodes

pytestmark = [pytest.mark.engine, pytest.mark.slow, pytest.mark.timeout(1_800)]

CHIPS = 2
START_S = 480.0
"""Of two engines and their chips, on a busy host."""


@pytest.fixture
def cluster() -> Iterator[TwoRayNodes]:
    with started_nodes(settings={"RAY_worker_niceness": "0"}) as cluster:
        yield cluster


@pytest.fixture
def service(
    cluster: TwoRayNodes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[ServerProcess]:
    arguments = (
        *("--replicas", "2", "--model", MODEL, "--chips", str(CHIPS), "--clock", "dilated:10"),
        *("--ray-address", cluster.address, "--max-model-len", "1024"),
        *("--api-keys", str(key_file(tmp_path))),
    )
    with started(ULTRASERVE, *arguments, environment=cluster.environment) as server:
        set_environment(server, monkeypatch)
        server.wait_ready(START_S)
        server.wait_until(lambda: ready(server) == 2, "both replicas", timeout_s=START_S)
        yield server


def ranks_up(service: ServerProcess) -> list[int]:
    return [each.figures.ranks_up if each.figures else 0 for each in replicas(service)]


def test_the_loss_of_a_node_is_one_replicas_and_no_requests(
    cluster: TwoRayNodes, service: ServerProcess
) -> None:
    undisturbed = asyncio.run(texts(service))
    assert [len(cluster.workers(node)) for node in (HEAD, OTHER)] == [CHIPS, CHIPS]
    service.wait_until(lambda: ranks_up(service) == [CHIPS, CHIPS], "all ranks")
    before = replicas(service)
    untouched = cluster.workers(HEAD)

    assert asyncio.run(texts(service, midway=cluster.lose_other)) == undisturbed
    assert metric(service, "ultraserve_broken_streams_total") == 0
    service.wait_until(lambda: ranks_up(service) == [CHIPS, 0], "the end of the second's ranks")
    service.wait_until(lambda: ready(service) == 1, "its state")
    assert cluster.workers(HEAD) == untouched

    service.wait_until(lambda: "has been marked dead" in service.log(), "Ray's notice")
    address = ("--address", f"127.0.0.1:{service.control_port}")
    assert main(["fault", "heal", "--all", *address, "--replica", "1"]) == 0
    service.wait_until(lambda: ranks_up(service) == [CHIPS, CHIPS], "all ranks again")
    service.wait_until(lambda: ready(service) == 2, "both replicas again")
    assert untouched < cluster.workers(HEAD)
    assert len(cluster.workers(HEAD)) == 2 * CHIPS
    assert [each.pid for each in replicas(service)] == [each.pid for each in before]
    assert asyncio.run(texts(service)) == undisturbed
