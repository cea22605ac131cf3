"""Arguments of a server behind a front, for benchmarks that may ask either."""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import httpx

from serving.process.front_program import PROGRAM_VARIABLE
from tests.conformance.pinned_environment import python_of
from tests.e2e.server_process import HOST, free_port

_READY_TIMEOUT_S: Final = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontArguments:
    """Of `ultraserve serve`, with its environment; `url` is the front's, None without one."""

    arguments: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    url: str | None = None

    def wait_ready(self) -> None:
        """Wait until the front, if any, has its engine; raises TimeoutError."""
        end_s = time.monotonic() + _READY_TIMEOUT_S
        while self.url is not None and not _is_ready(self.url):
            if time.monotonic() > end_s:
                raise TimeoutError(f"{self.url} is not ready after {_READY_TIMEOUT_S:.0f} s")
            time.sleep(0.2)  # polls another program


NO_FRONT: Final = FrontArguments()


def _is_ready(url: str) -> bool:
    try:
        return httpx.get(f"{url}/readiness", trust_env=False).is_success
    except httpx.TransportError:
        return False  # it has not begun to listen


def front_arguments(program: Path | None = None) -> FrontArguments:
    """smg on free ports; by default the pinned one, whose environment is built if missing."""
    program = program or python_of("smg").with_name("smg")
    port, metrics_port = str(free_port()), str(free_port())
    return FrontArguments(
        arguments=("--front", "smg", "--front-port", port, "--front-metrics-port", metrics_port),
        environment={PROGRAM_VARIABLE: str(program)},
        url=f"http://{HOST}:{port}",
    )
