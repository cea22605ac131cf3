"""A server in its own process, seen from outside: ports and memory."""

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field

import psutil

KEY = "sk-hostile-target-0123456789abcdef"
OTHER_KEY = "sk-hostile-target-of-an-honest-client"
MIB = 2**20


@dataclass(frozen=True, kw_only=True)
class Target:
    """The process, while the block of `target` runs."""

    http_port: int
    grpc_port: int
    control_port: int
    console_port: int
    process: psutil.Process
    left_mib: list[float] = field(default_factory=lambda: [0.0])
    """What it had after each attack."""

    def rss_mib(self) -> float:
        return float(self.process.memory_info().rss) / MIB

    def processor_s(self) -> float:
        """What its threads have had of the processors, to 10 ms."""
        times = self.process.cpu_times()
        return float(times.user + times.system)


@contextlib.contextmanager
def target() -> Iterator[Target]:
    command = [sys.executable, "-m", "tests.serving.server.gateway.hostile.hostile_target"]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None
        assert child.stdin is not None
        try:
            line = next(each for each in child.stdout if each.startswith("{"))
            yield Target(process=psutil.Process(child.pid), **json.loads(line))
        finally:
            child.stdin.close()
            try:
                child.wait(10.0)
            except subprocess.TimeoutExpired:
                child.kill()
