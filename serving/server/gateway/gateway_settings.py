"""Settings of a server's gateway: read from flags once, passed to the server's process as JSON.

They travel in the environment, as vLLM starts the app without arguments of ours, and hold no
secret: keys are hashed or lie in files.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Self

from emulator.errors import ConfigError
from serving.access.tls_files import TlsFiles
from serving.policy.admission.admission_limits import AdmissionLimits
from serving.process.json_settings import read_settings, settings_text
from startup.typed_options import option

ENVIRONMENT: Final = "ULTRASERVE_GATEWAY"

API_PROCESSES_MAX: Final = 64
"""Each takes half a gigabyte; what one admission stands is less."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewaySettings:
    """The gateway of one server.

    Attributes:
        grpc_host: of `vllm.grpc.engine.VllmEngine`.
        key_hashes: of keys given by flag or environment, as `serving.access` hashes them.
        console_port: None: the port after the control service's; 0: no console.
        tls: for HTTP, gRPC, and the control service beyond loopback; None: plain text.
    """

    limits: AdmissionLimits = field(default_factory=AdmissionLimits)
    grpc_host: str = "127.0.0.1"
    grpc_port: int | None = option(
        None, "of vllm.grpc.engine.VllmEngine (default: no such service)", metavar="PORT"
    )
    key_file: Path | None = option(
        None,
        "keys of clients, with limits: see `ultraserve key` (default: clients need no key)",
        "--api-keys",
    )
    key_hashes: tuple[str, ...] = ()
    control_key_file: Path | None = option(
        None,
        "the key of the control service, in one line (default: one is drawn at each start; "
        "commands of the same user find it)",
    )
    console_port: int | None = option(
        None,
        "of the live page that `ultraserve console` shows, on the control service's address "
        "(default: the port after --control-port; 0: no such page)",
        metavar="PORT",
    )
    tls: TlsFiles | None = None
    body_bytes_max: int = option(
        16 * 2**20, "bytes of a request, both protocols, at most", "--max-body-bytes"
    )
    request_wall_s_max: float = option(
        3_600.0, "wall seconds of a request, at most", "--request-timeout", metavar="S"
    )
    api_server_count: int = option(
        1,
        "processes that serve HTTP, with one admission, one set of keys and one page of metrics",
        metavar="N",
    )
    drain_wall_s_max: float = option(
        30.0,
        "most wall seconds that requests have to end in when the server shuts down",
        "--drain-timeout",
        metavar="S",
    )

    def __post_init__(self) -> None:
        if self.grpc_port is not None:
            port = self.grpc_port
            _check("grpc_port", port, 1 <= port <= 65_535, "1 to 65535")
        count = self.api_server_count
        expected = f"1 to {API_PROCESSES_MAX}"
        _check("api_server_count", count, 1 <= count <= API_PROCESSES_MAX, expected)
        _check("max_body_bytes", self.body_bytes_max, self.body_bytes_max >= 1, "at least 1")
        _check_seconds("request_timeout", self.request_wall_s_max)
        if self.drain_wall_s_max != 0:
            _check_seconds("drain_timeout", self.drain_wall_s_max)

    def to_environment(self) -> dict[str, str]:
        """The variable that `from_environment` reads."""
        return {ENVIRONMENT: settings_text(self)}

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> Self:
        """The settings of this process, or the defaults."""
        text = environment.get(ENVIRONMENT)
        return cls() if text is None else read_settings(text, cls)


def _check(field: str, value: float, holds: bool, expected: str) -> None:
    if not holds:
        raise ConfigError(field, value, expected)


def _check_seconds(field: str, value: float) -> None:
    _check(field, value, 0 < value < float("inf"), "seconds above 0")
