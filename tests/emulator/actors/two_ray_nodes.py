"""An external Ray cluster: two nodes on two loopback addresses, with a token."""

import contextlib
import os
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType

import psutil
import pytest
from ray._private.authentication_test_utils import reset_auth_token_state

HEAD, OTHER = "127.0.0.2", "127.0.0.3"
"""Ray takes 127.0.0.1 for the machine's outer address."""

START_S = 90.0
STOP_S = 60.0


class TwoRayNodes:
    """A head at `HEAD` and a second node at `OTHER`; `environment` is a driver's.

    Its processes write below `directory`, which must have a short path. With `is_open` it needs no
    token. `settings` are further variables of its daemons.
    """

    def __init__(
        self,
        directory: Path,
        *,
        is_open: bool = False,
        settings: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        token = secrets.token_hex(32)
        self.environment = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": token}
        asked = {"RAY_AUTH_MODE": "disabled"} if is_open else self.environment
        self._servers = {**asked, **settings}
        self._directory = directory
        self._nodes: dict[str, subprocess.Popen[bytes]] = {}
        with socket.create_server((HEAD, 0)) as free:
            self.address = f"{HEAD}:{free.getsockname()[1]}"

    def start(self, *, alone: bool = False) -> None:
        port = self.address.rpartition(":")[2]
        temporary = str(self._directory / "r")
        self._start_node(
            HEAD, "--head", f"--port={port}", "--include-dashboard=false", f"--temp-dir={temporary}"
        )
        if not alone:
            self.start_other()

    def start_other(self) -> None:
        """Start the second node, also after its loss."""
        self._start_node(OTHER, f"--address={self.address}")

    def lose_other(self) -> None:
        """Kill every process of the second node, chips too, as when its host goes."""
        for process in self._processes_of(OTHER):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        self._nodes.pop(OTHER).wait(STOP_S)

    def _start_node(self, address: str, *options: str) -> None:
        log = self._directory / f"{address}.log"
        with log.open("wb") as output:
            node = subprocess.Popen(
                [
                    *(sys.executable, "-m", "ray.scripts.scripts", "start", "--block"),
                    *(f"--node-ip-address={address}", "--num-cpus=1", "--disable-usage-stats"),
                    *("--object-store-memory=80000000", *options),
                ],
                env={**os.environ, **self._servers},
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._nodes[address] = node
        end_s = time.monotonic() + START_S
        while "Ray runtime started" not in log.read_text():
            assert node.poll() is None, log.read_text()
            assert time.monotonic() < end_s, log.read_text()
            time.sleep(0.1)

    def processes(self) -> set[psutil.Process]:
        return {process for address in self._nodes for process in self._processes_of(address)}

    def _processes_of(self, address: str) -> set[psutil.Process]:
        with contextlib.suppress(psutil.NoSuchProcess):
            root = psutil.Process(self._nodes[address].pid)
            return {each for each in {root, *root.children(recursive=True)} if _lives(each)}
        return set()

    def workers(self, *addresses: str) -> set[psutil.Process]:
        """Processes that hold a chip, on the nodes at `addresses`, or on both."""
        found = set()
        for address in addresses or self._nodes:
            for each in self._processes_of(address):
                with contextlib.suppress(psutil.NoSuchProcess):
                    if each.name().startswith("ray::ChipWorker"):
                        found.add(each)
        return found

    @contextlib.contextmanager
    def as_driver(self) -> Iterator[None]:
        """The cluster's token in the environment, for a Ray that has been imported already too."""
        try:
            with pytest.MonkeyPatch.context() as patch:
                for name, value in self.environment.items():
                    patch.setenv(name, value)
                reset_auth_token_state()
                yield
        finally:
            reset_auth_token_state()

    def stop(self) -> None:
        """End all its processes, by id."""
        processes = self.processes()
        for node in reversed(self._nodes.values()):
            node.terminate()
        for node in self._nodes.values():
            try:
                node.wait(STOP_S)
            except subprocess.TimeoutExpired:
                node.kill()
        _, alive = psutil.wait_procs(processes, 5.0)
        for process in alive:
            process.kill()
        psutil.wait_procs(alive, 5.0)


@contextlib.contextmanager
def started_nodes(
    *,
    alone: bool = False,
    is_open: bool = False,
    settings: Mapping[str, str] = MappingProxyType({}),
) -> Iterator[TwoRayNodes]:
    """Both nodes, or the head `alone`, in a directory of their own; asserts afterwards that no
    process of them is left.
    """
    directory = Path(tempfile.mkdtemp(prefix="rn", dir="/tmp"))  # Ray's sockets want a short path
    cluster = TwoRayNodes(directory, is_open=is_open, settings=settings)
    try:
        cluster.start(alone=alone)
        yield cluster
    finally:
        cluster.stop()
        shutil.rmtree(directory)
    assert cluster.processes() == set()


def _lives(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False
