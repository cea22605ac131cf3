"""What a server's error says, in one short line, whatever its form."""

from typing import Final

import msgspec

from loadgen.clients.server_json import UNREADABLE
from loadgen.errors import one_line

MESSAGE_CHARACTERS_MAX: Final = 200


def short_line(text: str) -> str:
    """Make words of a server one short line that a terminal only shows."""
    return one_line(text)[:MESSAGE_CHARACTERS_MAX]


def error_message(body: bytes) -> str:
    """Return the words of an error body: its `error.message` if it has one, else its beginning."""
    try:
        decoded = msgspec.json.decode(body)
    except UNREADABLE:
        decoded = None
    if isinstance(decoded, dict):
        inner = decoded.get("error", decoded)
        found = inner.get("message", inner) if isinstance(inner, dict) else inner
        return short_line(str(found))
    return short_line(body.decode(errors="replace"))
