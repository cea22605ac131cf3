"""Whether a request comes from our own page, or from no page at all: never from another's. Pure.

A browser on this machine reaches what only this machine can. Another's page could name us by a
host of its own that it points at loopback (DNS rebinding), or send us a form; so the name that the
browser used has to be ours, and where it says which page asks, that page has to be ours too.
"""

from collections.abc import Mapping
from typing import Final

from yarl import URL

from serving.access.listen_address import is_loopback

_OUR_OWN: Final = ("same-origin", "none")
"""Of Sec-Fetch-Site: our page, or the user's own doing, such as a typed address."""


def is_named_rightly(host_header: str, own_host: str) -> bool:
    """Whether `host_header` (HOST or HOST:PORT) is a name of loopback or the server's own.

    Ports are not compared: one that is forwarded has another one.
    """
    url = _url_of(f"http://{host_header}")
    host = None if url is None or url.user is not None or url.path != "/" else url.host
    if host is None:
        return False
    return is_loopback(host) or host.endswith(".localhost") or host == own_host.lower()


def comes_from_elsewhere(headers: Mapping[str, str], *, scheme: str) -> bool:
    """Whether a page that is not ours asks; a program that is no browser says nothing of pages."""
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
