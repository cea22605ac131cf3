"""Whether an address can be reached from this machine alone."""

import ipaddress


def is_loopback(host: str) -> bool:
    """Whether `host` is loopback; a name other than `localhost` is not, whatever it stands for."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
