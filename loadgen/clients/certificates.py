"""Trusted certificates, for HTTPS and gRPC."""

import ssl
from pathlib import Path

from loadgen.errors import OptionError


def trusted(ca: Path | None) -> ssl.SSLContext:
    """SSL context of `ca`'s certificates or the system's; OptionError for a file without any."""
    try:
        return ssl.create_default_context(cafile=ca)
    except (OSError, ssl.SSLError) as error:
        expected = f"a file of certificates in PEM ({error.strerror or error})"
        raise OptionError("--ca", ca, expected) from error


def ca_bytes(ca: Path) -> bytes:
    """The file's content; raises as `trusted`."""
    trusted(ca)
    return ca.read_bytes()
