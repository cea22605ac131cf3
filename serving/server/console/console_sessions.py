"""Who may use the console: browser sessions, and requests from our own page or none.

Sessions allow reads without the key and are in this process's memory. A session is valid while its
key is, and expires; changes need the key. The cookie holds a random name, never the key.

Browsers send a cookie to every port of its host: another server on 127.0.0.1, opened in the same
browser, sees the name, and could read, but not change anything, until the session ends.

A browser on this machine reaches its loopback. Another site's page could name us by a host that it
points there (DNS rebinding), or send us a form; so the host, and the page where the browser names
it, must be ours.
"""

import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from yarl import URL

from serving.access.listen_address import is_loopback

SESSIONS_MAX: Final = 64
"""One more ends the least recently used."""

LIFE_WALL_S: Final = 12 * 3_600.0
IDLE_WALL_S: Final = 3_600.0
"""For closed pages; open ones read all the time."""

_NAME_BYTES: Final = 32  # 256 random bits


@dataclass(slots=True)
class _Session:
    """The key, and wall seconds of the beginning and the last use."""

    key: str = field(repr=False)
    begun_s: float
    used_s: float


class ConsoleSessions:
    """Sessions by name; `admits` checks keys."""

    def __init__(
        self, admits: Callable[[str | None], bool], *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._admits = admits
        self._clock = clock
        self._sessions: dict[str, _Session] = {}  # the one used longest ago first

    def __len__(self) -> int:
        return len(self._sessions)

    def begin(self, key: str | None) -> str | None:
        """A new session's name; None for an unknown key."""
        if key is None or not self._admits(key):
            return None
        self._drop_over()
        while len(self._sessions) >= SESSIONS_MAX:
            del self._sessions[next(iter(self._sessions))]
        name, now_s = secrets.token_urlsafe(_NAME_BYTES), self._clock()
        self._sessions[name] = _Session(key=key, begun_s=now_s, used_s=now_s)
        return name

    def key_of(self, name: str | None) -> str | None:
        """A live session's key, or None; renews the session."""
        session = None if name is None else self._sessions.get(name)
        if name is None or session is None:
            return None
        if self._is_over(session) or not self._admits(session.key):
            del self._sessions[name]
            return None
        session.used_s = self._clock()
        self._sessions[name] = self._sessions.pop(name)  # now the one used last
        return session.key

    def end(self, name: str | None) -> None:
        """End it; idempotent."""
        if name is not None:
            self._sessions.pop(name, None)

    def _is_over(self, session: _Session) -> bool:
        now_s = self._clock()
        return now_s - session.begun_s > LIFE_WALL_S or now_s - session.used_s > IDLE_WALL_S

    def _drop_over(self) -> None:
        for name in [name for name, each in self._sessions.items() if self._is_over(each)]:
            del self._sessions[name]


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
