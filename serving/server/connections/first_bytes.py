"""What a connection speaks, by its first bytes: HTTP/2, as gRPC's clients do, or HTTP/1. Pure.

A client of HTTP/2 that knows its server begins with a fixed text that no request of HTTP/1 begins
with (https://www.rfc-editor.org/rfc/rfc9113#section-3.4); two of its bytes are a prefix of methods
that HTTP/1 has, three are of none.
"""

from enum import StrEnum
from typing import Final

PREFACE: Final = b"PRI * HTTP/2.0"
"""Without the line's end: a request of HTTP/1 that begins so names the version 2.0 itself."""


class Speech(StrEnum):
    """What a connection speaks; its name as ALPN has it."""

    HTTP_1 = "http/1.1"
    HTTP_2 = "h2"


def speech_of(data: bytes) -> Speech | None:
    """What begins with `data`; None while it could still be either."""
    if data.startswith(PREFACE):
        return Speech.HTTP_2
    return None if PREFACE.startswith(data) else Speech.HTTP_1
