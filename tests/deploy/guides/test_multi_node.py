"""deploy/guides/multi-node.md, followed: two Ray nodes, an engine across them, a node that goes."""

import contextlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from tests.deploy.kuberay.test_ray_cluster import waiting_script
from tests.deploy.served_command import served, settings_of
from tests.e2e.server_process import ROOT, ServerProcess, free_port

GUIDE = (ROOT / "deploy/guides/multi-node.md").read_text(encoding="utf-8")
HEAD, OTHER = "127.0.0.2", "127.0.0.3"
CHIPS = 8
WAIT_S = 120.0
PROMPT = "def read_lines(path):"


def blocks() -> list[str]:
    """The guide's shell blocks, in their order."""
    return [block.strip() for block in re.findall(r"```sh\n(.*?)```", GUIDE, re.DOTALL)]


def test_the_guide_s_commands_are_those_of_two_nodes() -> None:
    settings, head, other, engine = blocks()
    args = served(engine.split()[1:])

    assert "RAY_AUTH_MODE=token" in settings
    assert settings_of(args).ray_address == f"{HEAD}:6379"
    assert settings_of(args).chips == CHIPS
    assert f"--head --node-ip-address={HEAD} --port=6379 " in head
    assert f"--address={HEAD}:6379 --node-ip-address={OTHER} " in other


@dataclass(frozen=True, kw_only=True)
class Terminals:
    """Runs blocks of the guide with ports and a folder of the test's own."""

    folder: Path
    ray_port: int

    def text(self, block: str) -> str:
        moved = block.replace(":6379", f":{self.ray_port}").replace(
            "--port=6379", f"--port={self.ray_port} --temp-dir={self.folder}/r"
        )
        return moved.replace(".venv/bin/", f"{Path(sys.executable).parent}/")

    def environment(self) -> dict[str, str]:
        """What the first block exports."""
        shown = f"{self.text(blocks()[0])}\nenv -0"
        said = subprocess.run(
            ["sh", "-c", shown],
            env={**os.environ, "HOME": str(self.folder)},
            check=True,
            capture_output=True,
            text=True,
        )
        pairs = (line.partition("=") for line in said.stdout.split("\0") if line)
        return {name: value for name, _, value in pairs if name.startswith("RAY_AUTH")}

    @contextlib.contextmanager
    def node(self, block: str, name: str) -> Iterator[subprocess.Popen[bytes]]:
        """A node in the foreground of a terminal of its own, until it has started."""
        log = self.folder / f"{name}.log"
        with log.open("wb") as output:
            node = subprocess.Popen(
                ["sh", "-c", f"exec {self.text(block)}"],
                cwd=ROOT,
                env={**os.environ, **self.environment()},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        started = set()
        try:
            wait_until(lambda: "Ray runtime started" in log.read_text(), log.read_text)
            started = set(psutil.Process(node.pid).children(recursive=True))
            yield node
        finally:
            for process in started | below(node.pid):
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
            node.kill()
            node.wait()


def below(pid: int) -> set[psutil.Process]:
    with contextlib.suppress(psutil.NoSuchProcess):
        return set(psutil.Process(pid).children(recursive=True))
    return set()


def chips_below(pid: int) -> list[psutil.Process]:
    found = []
    for process in below(pid):
        with contextlib.suppress(psutil.NoSuchProcess):
            if "ChipWorker" in " ".join(process.cmdline()):
                found.append(process)
    return found


def wait_until(condition: Callable[[], object], otherwise: Callable[[], str]) -> None:
    end_s = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < end_s, otherwise()
        time.sleep(0.2)  # polls another process


def greedy(server: ServerProcess) -> str:
    body = {"model": "qwen3-30b-a3b", "prompt": PROMPT, "max_tokens": 24, "temperature": 0}
    request = urllib.request.Request(
        f"{server.url}/v1/completions",
        data=json.dumps(body).encode(),
        headers={"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=WAIT_S) as answer:
        return str(json.loads(answer.read())["choices"][0]["text"])


def state(server: ServerProcess) -> dict[str, list[dict[str, object]]]:
    address = f"127.0.0.1:{server.control_port}"
    said = subprocess.run(
        [sys.executable, "-m", "serving.main", "state", "--json", "--address", address],
        cwd=ROOT,
        env={**os.environ, **server.own_environment},
        check=True,
        capture_output=True,
        text=True,
    )
    found: dict[str, list[dict[str, object]]] = json.loads(said.stdout)
    return found


def ranks_up(server: ServerProcess) -> int:
    return sum(1 for chip in state(server)["chips"] if chip["health"] == "up")


@contextlib.contextmanager
def waiting(terminals: Terminals) -> Iterator[subprocess.Popen[bytes]]:
    """The engine's container of deploy/kuberay as it waits for a second node."""
    script = waiting_script().replace(":6379", f":{terminals.ray_port}")
    waiter = subprocess.Popen(
        [sys.executable, "-c", script],
        env={**os.environ, **terminals.environment(), "POD_IP": HEAD, "NODES": "2"},
        start_new_session=True,
    )
    try:
        with pytest.raises(subprocess.TimeoutExpired):
            waiter.wait(10.0)  # the other node is not there yet: it must not end
        yield waiter
    finally:
        waiter.kill()
        waiter.wait()


@pytest.fixture
def terminals() -> Iterator[Terminals]:
    folder = Path(tempfile.mkdtemp(prefix="mn", dir="/tmp"))  # Ray's sockets want a short path
    with socket.create_server((HEAD, 0)) as free:
        port = int(free.getsockname()[1])
    yield Terminals(folder=folder, ray_port=port)
    shutil.rmtree(folder, ignore_errors=True)


@pytest.mark.slow
@pytest.mark.engine
@pytest.mark.timeout(900)
def test_an_engine_serves_across_two_nodes_and_goes_on_without_one(terminals: Terminals) -> None:
    _, head, other, engine = blocks()
    port, control_port = free_port(), free_port()
    words = terminals.text(engine).split()[1:]
    words[words.index("--port") + 1] = str(port)
    words[words.index("--control-port") + 1] = str(control_port)
    command = [sys.executable, "-m", "serving.main", *words]

    environment = terminals.environment()

    with (
        terminals.node(head, "head") as head_node,
        waiting(terminals) as waiter,
        terminals.node(other, "other") as other_node,
        ServerProcess(
            *command, port=port, control_port=control_port, environment=environment
        ) as server,
    ):
        assert waiter.wait(WAIT_S) == 0
        server.wait_ready()
        expected = greedy(server)
        assert [len(chips_below(node.pid)) for node in (head_node, other_node)] == [4, 4]

        other_node.send_signal(signal.SIGINT)  # Ctrl-C in its terminal
        other_node.wait(WAIT_S)
        assert greedy(server) == expected
        wait_until(lambda: ranks_up(server) == CHIPS // 2, server.log)
        lost = [chip["chip"] for chip in state(server)["chips"] if chip["health"] == "lost"]
        assert lost == [4, 5, 6, 7]
        assert greedy(server) == expected

        server.signal(signal.SIGTERM)
        assert server.wait_end() == 0
        wait_until(lambda: chips_below(head_node.pid) == [], server.log)
        assert head_node.poll() is None  # the cluster outlives its engine
