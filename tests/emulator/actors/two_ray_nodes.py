"""A Ray cluster that somebody else runs: two nodes on two loopback addresses, with a token."""

import os
import secrets
import socket
import subprocess
import sys
import time
from pathlib import Path

import psutil

HEAD, OTHER = "127.0.0.2", "127.0.0.3"
"""Ray takes 127.0.0.1 for the machine's outer address."""

START_S = 90.0
STOP_S = 60.0


class TwoRayNodes:
    """A head at `HEAD` and a second node at `OTHER`; `environment` is what a driver needs.

    Its processes write below `directory`, which must have a short path. One that `is_open` asks
    nobody for the token.
    """

    def __init__(self, directory: Path, *, is_open: bool = False) -> None:
        token = secrets.token_hex(32)
        self.environment = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": token}
        self._servers = {"RAY_AUTH_MODE": "disabled"} if is_open else self.environment
        self._directory = directory
        self._nodes: list[subprocess.Popen[bytes]] = []
        with socket.create_server((HEAD, 0)) as free:
            self.address = f"{HEAD}:{free.getsockname()[1]}"

    def start(self, *, alone: bool = False) -> None:
        """Start both, or the head alone."""
        port = self.address.rpartition(":")[2]
        temporary = str(self._directory / "r")
        self._start_node(
            HEAD, "--head", f"--port={port}", "--include-dashboard=false", f"--temp-dir={temporary}"
        )
        if not alone:
            self._start_node(OTHER, f"--address={self.address}")

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
        self._nodes.append(node)
        end_s = time.monotonic() + START_S
        while "Ray runtime started" not in log.read_text():
            assert node.poll() is None, log.read_text()
            assert time.monotonic() < end_s, log.read_text()
            time.sleep(0.1)

    def processes(self) -> set[psutil.Process]:
        """All living processes of both nodes, workers included."""
        found: set[psutil.Process] = set()
        for node in self._nodes:
            try:
                root = psutil.Process(node.pid)
                found.update({root, *root.children(recursive=True)})
            except psutil.NoSuchProcess:
                continue
        return {each for each in found if each.is_running() and each.status() != "zombie"}

    def workers(self) -> set[psutil.Process]:
        """Those that hold a chip."""
        return {each for each in self.processes() if each.name().startswith("ray::ChipActor")}

    def stop(self) -> None:
        """End every process of it, by its id."""
        processes = self.processes()
        for node in reversed(self._nodes):
            node.terminate()
        for node in self._nodes:
            try:
                node.wait(STOP_S)
            except subprocess.TimeoutExpired:
                node.kill()
        _, alive = psutil.wait_procs(processes, 5.0)
        for process in alive:
            process.kill()
        psutil.wait_procs(alive, 5.0)
