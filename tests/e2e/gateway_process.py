"""The public gateway `smg` in front of engines, started as deploy/gateway/README.md says.

A third-party program in its own environment: named by ULTRASERVE_SMG, on the path, or installed by
`make gateway-deps`.
"""

import contextlib
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import httpx
import psutil

from tests.e2e.server_process import HOST, ROOT, free_port

VARIABLE: Final = "ULTRASERVE_SMG"
"""Names the program."""

READY_TIMEOUT_S: Final = 60.0
KEY: Final = "sk-of-the-gateway"

FLAGS: Final = (
    *("--policy", "cache_aware"),
    *("--health-check-interval-secs", "1", "--health-failure-threshold", "1"),
    *("--health-success-threshold", "1"),
)
"""Those of deploy/gateway/README.md; a test keeps them equal."""


def find_gateway() -> str | None:
    """The program; None if not installed."""
    named = os.environ.get(VARIABLE) or shutil.which("smg")
    built = ROOT.glob(".conformance/smg-*/bin/smg")
    return named or next((str(path) for path in sorted(built) if os.access(path, os.X_OK)), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Worker:
    """One engine, as the gateway sees it."""

    url: str
    healthy: bool
    model: str


class GatewayProcess:
    """A running gateway; clients ask at `url`."""

    def __init__(self, *, url: str, metrics_url: str, log: Path, pid: int) -> None:
        self.url = url
        self.pid = pid
        self._metrics_url = metrics_url
        self._log = log
        self._client = httpx.Client(
            base_url=url, headers={"authorization": f"Bearer {KEY}"}, trust_env=False, timeout=10
        )

    def log(self) -> str:
        return self._log.read_text(errors="replace")

    def workers(self) -> list[Worker]:
        """Its engines, by address."""
        found: list[dict[str, Any]] = self._client.get("/workers").json()["workers"]
        return sorted(
            (
                Worker(url=each["url"], healthy=each["is_healthy"], model=each["model_id"])
                for each in found
            ),
            key=lambda worker: worker.url,
        )

    def metrics(self) -> str:
        return httpx.get(self._metrics_url, trust_env=False).text

    def wait_healthy(self, *urls: str) -> None:
        """Wait until exactly the engines at `urls` are healthy."""
        end_s = time.monotonic() + READY_TIMEOUT_S
        while sorted(urls) != (found := [each.url for each in self._now() if each.healthy]):
            assert time.monotonic() < end_s, (
                f"{found} of {urls} are healthy:\n{self.log()[-2_000:]}"
            )
            time.sleep(0.1)  # polls another process

    def _now(self) -> list[Worker]:
        try:
            return self.workers()
        except httpx.TransportError:
            return []  # it has not begun to listen


@contextlib.contextmanager
def gateway(urls: Sequence[str], *arguments: str) -> Iterator[GatewayProcess]:
    """Start it for the running engines at `urls`, or those that `arguments` name; kills it at the
    end.
    """
    program = find_gateway()
    assert program is not None
    port, metrics_port = free_port(), free_port()
    with tempfile.TemporaryDirectory(prefix="smg") as folder:
        log = Path(folder, "log")
        with log.open("w") as out:
            process = subprocess.Popen(
                [
                    *(program, "launch", "--host", HOST, "--port", str(port)),
                    *("--prometheus-host", HOST, "--prometheus-port", str(metrics_port)),
                    *(("--worker-urls", *urls) if urls else ()),
                    *("--api-key", KEY, *FLAGS),
                    *("--log-level", "warn", *arguments),
                ],
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
            )
        try:
            yield GatewayProcess(
                url=f"http://{HOST}:{port}",
                metrics_url=f"http://{HOST}:{metrics_port}/metrics",
                log=log,
                pid=process.pid,
            )
        finally:
            _kill(process)


def _kill(process: "subprocess.Popen[bytes]") -> None:
    with contextlib.suppress(psutil.Error):
        for child in psutil.Process(process.pid).children(recursive=True):
            with contextlib.suppress(psutil.Error):
                child.kill()
    process.kill()
    process.wait()
