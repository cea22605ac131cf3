"""The server's addresses for an attack and the honest client; plain data, for other processes."""

import ssl
from dataclasses import dataclass
from typing import Final

HOST: Final = "127.0.0.1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """One server's ports on loopback, and a client's key.

    Attributes:
        authority: file of the trusted authority; empty without TLS. The control and console ports
            are on loopback, without TLS.
    """

    http_port: int
    grpc_port: int
    control_port: int
    console_port: int
    model: str
    key: str
    authority: str = ""

    @property
    def authorization(self) -> str:
        return f"Bearer {self.key}"

    def tls(self, *protocols: str) -> ssl.SSLContext | None:
        """A client context with these protocols; None without TLS."""
        if not self.authority:
            return None
        context = ssl.create_default_context(cafile=self.authority)
        context.set_alpn_protocols(list(protocols))
        return context
