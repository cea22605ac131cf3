"""The PEM files of a server's TLS, and whether they fit together."""

import ssl
from dataclasses import dataclass
from pathlib import Path

from emulator.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsFiles:
    """PEM files; with `client_ca`, clients must show a certificate of it (mTLS)."""

    certificate: Path
    key: Path
    client_ca: Path | None = None

    def context(self) -> ssl.SSLContext:
        """A server's TLS context; raises ConfigError, which names the file that is wrong."""
        for field, path in (
            ("tls_cert", self.certificate),
            ("tls_key", self.key),
            ("tls_client_ca", self.client_ca),
        ):
            if path is not None:
                _check_readable(field, path)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        try:
            context.load_cert_chain(self.certificate, self.key, password=_refuse_password)
        except (ssl.SSLError, ValueError) as error:
            raise ConfigError(
                "tls_cert",
                self.certificate,
                f"a PEM certificate, and its PEM key in {self.key} ({_reason(error)})",
            ) from error
        if self.client_ca is not None:
            context.verify_mode = ssl.CERT_REQUIRED
            try:
                context.load_verify_locations(self.client_ca)
            except ssl.SSLError as error:
                raise ConfigError(
                    "tls_client_ca", self.client_ca, f"PEM certificates ({_reason(error)})"
                ) from error
        return context

    def identity(self) -> tuple[tuple[int, int, int], ...]:
        """Inode, size and modification time of each file; raises OSError where one is gone."""
        files = (self.certificate, self.key, self.client_ca)
        states = [path.stat() for path in files if path is not None]
        return tuple((state.st_ino, state.st_size, state.st_mtime_ns) for state in states)


def _refuse_password() -> str:
    raise ValueError("the key has a password: give one without")


def _check_readable(field: str, path: Path) -> None:
    try:
        path.open("rb").close()
    except OSError as error:
        raise ConfigError(field, path, f"a file to read ({error.strerror})") from error


def _reason(error: Exception) -> str:
    """OpenSSL's own words, without the place in its source."""
    words = getattr(error, "reason", None) or str(error)
    return str(words).replace("_", " ").lower()
