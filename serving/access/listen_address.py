"""Checks of listen addresses: loopback, and free ports."""

import errno
import ipaddress
import socket

from emulator.errors import ConfigError
from serving.errors import PortInUse


def is_loopback(host: str) -> bool:
    """Whether `host` is loopback; of names, `localhost` alone is."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def check_port(host: str, port: int, *, field: str = "port", host_field: str = "host") -> None:
    """Raise PortInUse for a taken port, ConfigError for an address that is not this machine's."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OverflowError as error:
            raise ConfigError(field, port, "0 to 65535") from error
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise PortInUse(host, port, field=field) from error
            reason = error.strerror or str(error)
            raise ConfigError(
                host_field, f"{host}, port {port}", f"an address to listen on ({reason})"
            ) from error
