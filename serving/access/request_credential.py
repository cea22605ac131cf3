"""The key that a request shows in its headers, or a call in its metadata; read alike at all doors.

    authorization: Bearer KEY      as OpenAI's clients send it
    x-api-key: KEY                 as Anthropic's do

A header that is there twice shows no key: what stands between us and the client may have read, or
added, the other one.
"""

from collections.abc import Iterable
from typing import Final

HEADERS: Final = ("authorization", "x-api-key")
"""Where a key may be, the first one before the second."""

_BEARER: Final = "bearer"


def shown_key(headers: Iterable[tuple[str, str | bytes]]) -> str | None:
    """The key in `headers`, whose names may be in any case; None for none, or for two of a kind.

    A value in bytes is no text, and so no key. What stands in `authorization` and is no bearer's
    key leaves the word to `x-api-key`.
    """
    shown: dict[str, str | bytes] = {}
    for name, value in headers:
        kind = name.lower()
        if kind in HEADERS:
            if kind in shown:
                return None
            shown[kind] = value
    authorization, own = (shown.get(kind, "") for kind in HEADERS)
    if isinstance(authorization, str):
        scheme, _, key = authorization.strip().partition(" ")
        if scheme.lower() == _BEARER and key.strip():
            return key.strip()
    return own.strip() or None if isinstance(own, str) else None
