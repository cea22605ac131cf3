"""What a server's error says, in one short line, whatever its form."""

from typing import Final

import msgspec

MESSAGE_CHARACTERS_MAX: Final = 200


def error_message(body: bytes) -> str:
    """Return the words of an error body: its `error.message` if it has one, else its beginning."""
    try:
        decoded = msgspec.json.decode(body)
    except msgspec.MsgspecError:
        decoded = None
    if isinstance(decoded, dict):
        inner = decoded.get("error", decoded)
        found = inner.get("message", inner) if isinstance(inner, dict) else inner
        text = str(found)
    else:
        text = body.decode(errors="replace")
    return " ".join(text.split())[:MESSAGE_CHARACTERS_MAX]
