"""Runs in other processes and on a Ray cluster are those of this process, to the bit."""

import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
import ray

from emulator.actors import ray_tasks
from emulator.errors import ConfigError, WorkersLost
from serving.simulator import THIS_PROCESS, SimulationWorkers
from tests.emulator.actors.two_ray_nodes import HEAD, TwoRayNodes, started_nodes
from tests.serving.simulator import worker_tasks

SEEDS = range(5)
WAIT_S = 60.0


@pytest.fixture(scope="module")
def expected() -> list[tuple[bytes, ...]]:
    found = THIS_PROCESS.map(worker_tasks.bits_of_seed, SEEDS)
    assert len(set(found)) == len(SEEDS)
    return found


@pytest.mark.process
@pytest.mark.long
def test_other_processes_give_the_same_bits_in_the_tasks_order(
    expected: list[tuple[bytes, ...]],
) -> None:
    with SimulationWorkers(2) as workers:
        assert workers.map(worker_tasks.bits_of_seed, SEEDS) == expected
        with pytest.raises(ConfigError, match="number=3: expected another"):
            workers.map(worker_tasks.refuse, [3])


@pytest.mark.process
def test_a_process_that_is_gone_is_one_clear_line() -> None:
    with SimulationWorkers(2) as workers, pytest.raises(WorkersLost, match=r"^a process that"):
        workers.map(worker_tasks.end_at_once, range(2))


@pytest.mark.process
@pytest.mark.parametrize(
    "ray_address", [None, pytest.param("local", marks=[pytest.mark.fleet, pytest.mark.slow])]
)
def test_an_interrupt_ends_what_runs(ray_address: str | None, tmp_path: Path) -> None:
    main = threading.get_ident()
    begun = tmp_path / "begun"
    before = set(psutil.Process().children(recursive=True))

    def interrupt() -> None:
        end_s = time.monotonic() + WAIT_S
        while not begun.exists() and time.monotonic() < end_s:
            time.sleep(0.01)
        signal.pthread_kill(main, signal.SIGINT)  # as from a terminal, whose Ctrl-C it gets

    threading.Thread(target=interrupt, daemon=True).start()
    with pytest.raises(KeyboardInterrupt), SimulationWorkers(2, ray_address=ray_address) as workers:
        workers.map(worker_tasks.begin_and_wait, [str(begun)] * 3)

    _, alive = psutil.wait_procs(
        each
        for each in set(psutil.Process().children(recursive=True)) - before
        if "resource_tracker" not in " ".join(each.cmdline())
    )
    assert not alive


@pytest.mark.slow
@pytest.mark.fleet
def test_a_ray_of_its_own_gives_the_same_bits(
    expected: list[tuple[bytes, ...]], capfd: pytest.CaptureFixture[str]
) -> None:
    with SimulationWorkers(ray_address="local") as workers:
        assert workers.count == os.cpu_count()
        for _ in range(30):  # others end just as the first is refused
            with pytest.raises(ConfigError, match="number=3: expected another"):
                workers.map(worker_tasks.refuse, range(3, 20))
        assert workers.map(worker_tasks.bits_of_seed, SEEDS) == expected
    assert not ray.is_initialized()
    assert capfd.readouterr().err == ""


@pytest.mark.slow
@pytest.mark.fleet
def test_a_node_with_other_code_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_tasks, "code_checksum", lambda: "of another version")

    with (
        SimulationWorkers(ray_address="local") as workers,
        pytest.raises(
            ConfigError, match=r"^ray-address=.*: expected a node that has the same code"
        ),
    ):
        workers.map(worker_tasks.nothing, [1])


@pytest.mark.parametrize("address", [f"{HEAD}:9", "nowhere", "auto"])
def test_a_cluster_that_there_is_not_is_one_clear_line(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_ADDRESS", f"{HEAD}:9")  # what auto finds

    with pytest.raises(ConfigError) as caught, SimulationWorkers(ray_address=address):
        pass
    assert str(caught.value).startswith(f"ray_address={address}: expected a running Ray cluster")


@pytest.fixture
def cluster() -> Iterator[TwoRayNodes]:
    with started_nodes(alone=True) as cluster, cluster.as_driver():
        yield cluster


@pytest.mark.slow
def test_a_running_cluster_gives_the_same_bits_and_its_loss_is_one_clear_line(
    cluster: TwoRayNodes, expected: list[tuple[bytes, ...]], tmp_path: Path
) -> None:
    begun = tmp_path / "begun"
    with SimulationWorkers(ray_address=cluster.address) as workers:
        assert workers.map(worker_tasks.bits_of_seed, SEEDS) == expected
    assert cluster.processes()

    def lose() -> None:
        end_s = time.monotonic() + WAIT_S
        while not begun.exists() and time.monotonic() < end_s:
            time.sleep(0.05)
        for process in cluster.processes():
            process.kill()

    threading.Thread(target=lose, daemon=True).start()
    with (
        pytest.raises(WorkersLost, match=f"^the Ray cluster at {cluster.address}: "),
        SimulationWorkers(ray_address=cluster.address) as workers,
    ):
        workers.map(worker_tasks.begin_and_wait, [str(begun)])
