"""The public gateway smg as a server's front: where its program is, and its command line.

smg (Rust) speaks HTTP to clients and vLLM's ZeroMQ messages to the engine's process, without a
process in Python between them. It is installed apart from this program (`make gateway-deps`, or
`pip install smg` into an environment of its own), because it brings its own versions of gRPC.
"""

import json
import multiprocessing
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from emulator.errors import ConfigError
from startup.import_path import child_environment

Front = Literal["smg"]

PROGRAM_VARIABLE: Final = "ULTRASERVE_SMG"
"""Names the program smg, where it is not on the path."""

KEYS_VARIABLE: Final = "ULTRASERVE_FRONT_KEYS"
"""The clients' keys for the front's process alone, as JSON: other users read command lines."""

ENVIRONMENT: Final = "ULTRASERVE_FRONT"
"""The process id of a server that has a front."""

REQUESTS_VARIABLE: Final = "ULTRASERVE_FRONT_REQUESTS"
"""The most requests at a time of such a server's engine."""

CLOSE_FRONT: Final = "close_front"
"""The engine's call that has it refuse the front's new requests, or take them again."""

FRONT_CLIENT: Final = 0
"""The engine's number of the front, which is what smg writes into its requests."""

API_CLIENT: Final = 1
"""The engine's number of the API process of a server with a front."""

_PORTS: Final = (20_000, 10_000)
_FNV: Final = (0xCBF29CE484222325, 0x100000001B3)

_RUN: Final = (
    "import json, os, secrets, sys\n"
    "from smg.launch_router import launch_router, parse_router_args\n"
    f"keys = json.loads(os.environ.pop({KEYS_VARIABLE!r}, '[]'))\n"
    "more = ['--api-key', keys[0]] if keys else []\n"
    "for number, key in enumerate(keys[1:], 2):\n"
    "    more += ['--tenant-api-key', f'{number}:{key}']\n"
    # Else a client's key, or anybody's without one, is its administrator's. Nobody knows this one.
    "more += ['--control-plane-api-keys', 'root:root:admin:' + secrets.token_hex(32)]\n"
    "launch_router(parse_router_args([*sys.argv[1:], *more]))\n"
)

_PATIENT_S: Final = 86_400
"""A worker is given up when it is gone, never because it is slow: there is no other."""


def has_front(environment: Mapping[str, str]) -> bool:
    """Whether this process is the engine's of a server with a front."""
    parent = multiprocessing.parent_process()
    return parent is not None and environment.get(ENVIRONMENT) == str(parent.pid)


def find_front(environment: Mapping[str, str]) -> Path:
    """The interpreter of the environment that has smg; raises ConfigError where none is found."""
    named = environment.get(PROGRAM_VARIABLE) or shutil.which("smg", path=environment.get("PATH"))
    python = None if named is None else Path(named).resolve().with_name("python")
    if python is None or not os.access(python, os.X_OK):
        expected = (
            f"smg on PATH, or {PROGRAM_VARIABLE} naming it in its environment's bin: "
            "`make gateway-deps` installs it, or `pip install smg` into an environment"
        )
        raise ConfigError("front", "smg", expected)
    return python


def handshake_port(path: Path) -> int:
    """The port of loopback at which smg awaits the engine of the worker `ipc://{path}`.

    20000 plus 64 bits of FNV-1a modulo 10000, as its guide to ZMQ workers says.
    """
    total, prime = _FNV
    for byte in str(path).encode():
        total = ((total ^ byte) * prime) & (2**64 - 1)
    first, ports = _PORTS
    return first + total % ports


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontProgram:
    """A front of one server.

    `model` is a directory with the tokenizer and its template, where `tokenizer` and
    `chat_template` name no others; `served` are the names by which clients know it;
    `directory` is this user's, for the program's sockets and its working directory.
    """

    python: Path
    host: str
    port: int
    metrics_port: int
    model: Path
    served: Sequence[str]
    directory: Path
    chat_template: Path | None = None
    tokenizer: Path | None = None
    keys: Sequence[str] = ()
    tls: tuple[Path, Path] | None = None
    requests_max: int
    body_bytes_max: int
    request_wall_s_max: float
    drain_wall_s_max: float

    @property
    def worker(self) -> Path:
        """The path of its sockets, less their endings."""
        return self.directory / "engine"

    def prepare(self) -> None:
        """Give the model its first name: smg calls a model by the path that it is given."""
        link = self.directory / self.served[0]
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(self.model.absolute(), target_is_directory=True)

    def command(self) -> list[str]:
        """Its command line, which has no keys."""
        flags = [
            *("--host", self.host, "--port", str(self.port)),
            *("--prometheus-host", "127.0.0.1", "--prometheus-port", str(self.metrics_port)),
            *("--worker-urls", f"ipc://{self.worker}", "--backend", "vllm"),
            *("--model-path", self.served[0], "--log-level", "warn"),
            *("--max-concurrent-requests", str(self.requests_max), "--queue-size", "0"),
            *("--max-payload-size", str(self.body_bytes_max)),
            *("--request-timeout-secs", str(max(1, round(self.request_wall_s_max)))),
            *("--shutdown-grace-period-secs", str(max(1, round(self.drain_wall_s_max)))),
            *("--history-backend", "none", "--max-background-responses", "0"),
            *("--disable-retries", "--disable-circuit-breaker"),
            *("--disable-worker-overload-protection", "--worker-wedge-secs", str(_PATIENT_S)),
        ]
        if self.chat_template is not None:
            flags += ["--chat-template", str(self.chat_template.absolute())]
        if self.tokenizer is not None:
            flags += ["--tokenizer-path", str(self.tokenizer.absolute())]
        for name in self.served[1:]:
            flags += ["--model-alias", f"{name}={self.served[0]}"]
        if self.tls is not None:
            certificate, key = self.tls
            flags += ["--tls-cert-path", str(certificate), "--tls-key-path", str(key)]
        return [str(self.python), "-I", "-c", _RUN, *flags]

    def environment(self, environment: Mapping[str, str]) -> dict[str, str]:
        """Variables of its process, which has its keys by them."""
        return child_environment(environment) | {KEYS_VARIABLE: json.dumps(list(self.keys))}
