"""The object that a client's or a replica's bytes may have."""

from typing import Any

import msgspec


def json_object(content: bytes | str) -> dict[str, Any] | None:
    """None for what is no JSON object, of which the content's reader tells the client."""
    try:
        found = msgspec.json.decode(content)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    return found if isinstance(found, dict) else None
