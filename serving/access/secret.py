"""The secret of a key: how it is drawn, its hash, and where a request shows it.

Kept is its plain SHA-256, as of `printf %s "$KEY" | sha256sum`. A slow, salted hash protects
secrets that can be guessed; 256 random bits cannot, and a request costs one hash however many keys
there are. Secrets that users choose (`--api-key`) are hashed the same way and never written to a
file by us; a short one is told.
"""

import hashlib
import re
import secrets
from collections.abc import Iterable
from typing import Final

SECRET_BYTES: Final = 32
"""256 random bits."""

PREFIX: Final = "us-"
"""So that scanners of source code, and people, see what it is."""

CHOSEN_LENGTH_MIN: Final = 20
"""Characters below which a secret that a user chose is called short: 20 random letters and digits
have 119 bits."""

HEADERS: Final = ("authorization", "x-api-key")
"""Where a request shows its key, the first before the second: `Bearer KEY` as OpenAI's clients send
it, `KEY` as Anthropic's do."""

_BEARER: Final = "bearer"

_HASH: Final = re.compile(r"sha256:[0-9a-f]{64}")


def draw_secret() -> str:
    """Draw a new secret from the system's source of chance."""
    return PREFIX + secrets.token_urlsafe(SECRET_BYTES)


def hash_of(secret: str) -> str:
    """The stored form of `secret`: `sha256:` and 64 hex digits. Any text has one."""
    return f"sha256:{digest_of(secret).hex()}"


def digest_of(secret: str) -> bytes:
    """SHA-256 [32 bytes] of `secret`."""
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).digest()


def is_hash(text: str) -> bool:
    """Whether `text` is what `hash_of` makes."""
    return _HASH.fullmatch(text) is not None


def digest_in(text: str) -> bytes:
    """The SHA-256 [32 bytes] that a hash spells."""
    assert is_hash(text)
    return bytes.fromhex(text.removeprefix("sha256:"))


def request_credential(headers: Iterable[tuple[str, str | bytes]]) -> str | None:
    """The key in a request's headers or a call's metadata; None for none, or for two of a kind.

    Of two headers of one name an intermediary may have read, or added, either. A value in bytes is
    no key. `x-api-key` counts where `authorization` has no bearer's key.
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
