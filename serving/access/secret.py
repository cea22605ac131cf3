"""Secrets of keys: drawing, hash, and place in a request.

The plain SHA-256 is stored, as of `printf %s "$KEY" | sha256sum`: 256 random bits need no slow,
salted hash, and a request costs one hash for any number of keys. Secrets that users choose
(`--api-key`) are hashed alike, never written to a file, and reported when short.
"""

import hashlib
import re
import secrets
from collections.abc import Iterable
from typing import Final

SECRET_BYTES: Final = 32
"""256 random bits."""

PREFIX: Final = "us-"
"""Identifies a key to scanners of source code, and to people."""

CHOSEN_LENGTH_MIN: Final = 20
"""Shorter chosen secrets are reported: 20 random letters and digits have 119 bits."""

HEADERS: Final = ("authorization", "x-api-key")
"""Headers with a key, by precedence: `Bearer KEY` (OpenAI's clients), `KEY` (Anthropic's)."""

_BEARER: Final = "bearer"

_HASH: Final = re.compile(r"sha256:[0-9a-f]{64}")


def draw_secret() -> str:
    """Draw a secret from the system's source of chance."""
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
    """The key in headers or metadata; None for none, or for two of a kind.

    An intermediary may have read, or added, either of two. A value in bytes is no key. `x-api-key`
    counts where `authorization` has no bearer key.
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
