"""Whether a request comes from our own page or none, rather than another site's. Pure.

A browser on this machine reaches its loopback. Another site's page could name us by a host that it
points there (DNS rebinding), or send us a form; so the host, and the page where the browser names
it, must be ours.
"""

from collections.abc import Mapping
from typing import Final

from yarl import URL

from serving.access.listen_address import is_loopback

_OUR_OWN: Final = ("same-origin", "none")
"""Values of Sec-Fetch-Site: our page, or the user, such as by a typed address."""


def is_named_rightly(host_header: str, own_host: str) -> bool:
    """Whether `host_header` (HOST or HOST:PORT) is loopback's or the server's own; a forwarded port
    may differ.
    """
    url = _url_of(f"http://{host_header}")
    host = None if url is None or url.user is not None or url.path != "/" else url.host
    if host is None:
        return False
    return is_loopback(host) or host.endswith(".localhost") or host == own_host.lower()


def comes_from_elsewhere(headers: Mapping[str, str], *, scheme: str) -> bool:
    """Whether another site's page sends it; only browsers name pages."""
    site = headers.get("Sec-Fetch-Site")
    if site is not None and site not in _OUR_OWN:
        return True
    origin = headers.get("Origin")
    if origin is None:
        return False
    shown, own = _url_of(origin), _url_of(f"{scheme}://{headers.get('Host', '')}")
    if shown is None or own is None or not shown.host:
        return True  # `null` is the origin of what has none, such as a file
    return (shown.scheme, shown.host, shown.port) != (own.scheme, own.host, own.port)


def _url_of(text: str) -> URL | None:
    try:
        url = URL(text)
        return url if url.host is not None and url.port is not None else None
    except ValueError:
        return None
