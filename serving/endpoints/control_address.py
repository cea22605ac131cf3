"""Where the control service listens: on this machine alone, because it asks nobody who they are."""

import ipaddress
from dataclasses import dataclass
from typing import Final, Self

from emulator.errors import ConfigError

DEFAULT_PORT: Final = 50051

ENVIRONMENT: Final = "ULTRASERVE_CONTROL_ADDRESS"
"""The variable that tells the server's process the address; see `control_hook`."""

MIDDLEWARE: Final = "serving.endpoints.control_hook.ControlHook"
"""What `vllm serve --middleware` is given; here, because naming it needs no gRPC."""

_EXPECTED = "HOST:PORT with a loopback host, such as 127.0.0.1:50051"


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlAddress:
    """A loopback address; raises ConfigError for another host, or a port that does not exist."""

    host: str = "127.0.0.1"
    port: int = DEFAULT_PORT

    def __post_init__(self) -> None:
        if not _is_loopback(self.host):
            raise ConfigError(
                field="control_address",
                value=self.host,
                expected="a loopback host: the control service has no authentication",
            )
        if not 1 <= self.port <= 65_535:
            raise ConfigError(field="control_port", value=self.port, expected="1 to 65535")

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read `HOST:PORT` or `[IPV6]:PORT`; raises ConfigError."""
        host, colon, port = text.rpartition(":")
        if not colon or not port.isdecimal():
            raise ConfigError(field="control_address", value=text, expected=_EXPECTED)
        if host.startswith("[") and host.endswith("]"):
            host = host[1:-1]
        return cls(host=host, port=int(port))

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
