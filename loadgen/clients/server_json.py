"""Bounds of numbers in a server's JSON, and its errors.

A number out of bounds makes the answer unreadable: it would spoil sums, or break the run later.
"""

from typing import Annotated, Final

import msgspec

from loadgen.errors import one_line

TOKENS_MAX: Final = 1_000_000_000
"""*Assumed*: a thousand times the longest context that is on offer (some 10^6 tokens)."""

TokenCount = Annotated[int, msgspec.Meta(ge=0, le=TOKENS_MAX)]
TokenId = Annotated[int, msgspec.Meta(ge=0, le=2**32 - 1)]  # uint32 where gRPC has them

UNREADABLE: Final = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""Errors of msgspec for unreadable bytes, invalid UTF-8 and deep nesting."""


MESSAGE_CHARACTERS_MAX: Final = 200


def short_line(text: str) -> str:
    """A server's text as one short, printable line."""
    return one_line(text)[:MESSAGE_CHARACTERS_MAX]


def error_message(body: bytes) -> str:
    """The `error.message` of an error body, else the body's beginning."""
    try:
        decoded = msgspec.json.decode(body)
    except UNREADABLE:
        decoded = None
    if isinstance(decoded, dict):
        inner = decoded.get("error", decoded)
        found = inner.get("message", inner) if isinstance(inner, dict) else inner
        return short_line(str(found))
    return short_line(body.decode(errors="replace"))
