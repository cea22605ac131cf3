"""Where an attack and the honest client find the server; plain data, for processes of their own."""

import ssl
from dataclasses import dataclass
from typing import Final

HOST: Final = "127.0.0.1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """One server's ports on loopback, and the key that a client of it shows.

    Attributes:
        authority: the file of the authority whose certificates are believed; empty without TLS.
            The control port and the console's are on loopback and have none.
        key: a key of the attacker's or of the honest client's.
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
        """A client's context that speaks these protocols, None where the server has no TLS."""
        if not self.authority:
            return None
        context = ssl.create_default_context(cafile=self.authority)
        context.set_alpn_protocols(list(protocols))
        return context
