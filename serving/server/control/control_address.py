"""The control service's address, by default on this machine's loopback."""

import re
from dataclasses import dataclass, replace
from typing import Final, Self

from emulator.errors import ConfigError
from serving.access.listen_address import is_loopback

DEFAULT_PORT: Final = 50051

ENVIRONMENT: Final = "ULTRASERVE_CONTROL_ADDRESS"
"""Holds the address in the server's process; see `control_hook`."""

NO_SERVICE: Final = "none"
"""Its value without a control service."""

MIDDLEWARE: Final = "serving.server.control.control_hook.ControlHook"
"""Of `vllm serve --middleware`; here, because naming it needs no gRPC."""

_HOST: Final = re.compile(r"[0-9A-Za-z_.:%-]{1,255}")
_EXPECTED = "HOST:PORT, such as 127.0.0.1:50051"


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlAddress:
    """A host and a port; beyond loopback only TLS. Raises ConfigError."""

    host: str = "127.0.0.1"
    port: int = DEFAULT_PORT

    def __post_init__(self) -> None:
        if not _HOST.fullmatch(self.host):
            raise ConfigError("control_address", self.host, _EXPECTED)
        if not 1 <= self.port <= 65_535:
            raise ConfigError("control_port", self.port, "1 to 65535")

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read `HOST:PORT` or `[IPV6]:PORT`; raises ConfigError."""
        host, colon, port = text.rpartition(":")
        if not colon or not port.isdecimal():
            raise ConfigError("control_address", text, _EXPECTED)
        if host.startswith("[") and host.endswith("]"):
            host = host[1:-1]
        return cls(host=host, port=int(port))

    def console(self, port: int | None = None) -> Self:
        """The console's address: at `port`, by default the next port."""
        return replace(self, port=self.port + 1 if port is None else port)

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine reaches it."""
        return is_loopback(self.host)

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"
