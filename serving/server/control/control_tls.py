"""TLS files of a control client."""

from dataclasses import dataclass
from pathlib import Path

import grpc

from emulator.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlTls:
    """PEM files: the server's authority (None: the system's), and the client's certificate with its
    key, for a server that asks. Raises ConfigError for one of the two alone.
    """

    ca: Path | None = None
    certificate: Path | None = None
    key: Path | None = None

    def __post_init__(self) -> None:
        if (self.certificate is None) != (self.key is None):
            raise ConfigError("tls_cert", self.certificate, "both --tls-cert and --tls-key")

    def credentials(self) -> grpc.ChannelCredentials:
        """Read the files; raises ConfigError."""
        return grpc.ssl_channel_credentials(
            root_certificates=_read("tls_ca", self.ca),
            private_key=_read("tls_key", self.key),
            certificate_chain=_read("tls_cert", self.certificate),
        )


def _read(field: str, path: Path | None) -> bytes | None:
    if path is None:
        return None
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(field, path, f"a file to read ({error.strerror})") from error
