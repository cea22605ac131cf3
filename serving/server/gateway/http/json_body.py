"""Refuses invalid JSON, which vLLM's framework answers in no API's shape, and bodies whose values
would take many times their bytes, or the server's time.
"""

import asyncio
from http import HTTPStatus
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt

from serving.server.gateway.http.asgi import Scope, header
from serving.server.gateway.http.http_errors import HttpError, HttpRefused, bad_request

VALUES_MAX: Final = 1_000_000
"""Commas and opening brackets, which bound values: 16 MiB of `[],` take 354 MiB as Python's
objects. Above any context's tokens. Assumed."""

CONTAINERS_MAX: Final = 16_384
"""Arrays and objects: vLLM's app takes 3 us for an object and 25 for a message, blocking all else.
Four times OpenAI's limits of properties, messages or tools. Assumed."""

STRINGS_MAX: Final = 65_536
"""With names of fields. Assumed: four for each array or object."""

_SLICE_BYTES: Final = 2**18
_COMMA, _QUOTE, _BRACKET, _BRACE = (ord(mark) for mark in ',"[{')


async def refuse_values(body: bytes) -> None:
    """Raise HttpRefused, 413, for a body that costs far more memory or time than its bytes.

    VALUES_MAX counts marks in strings too. Other requests are served between slices of a long body.
    """
    if len(body) <= CONTAINERS_MAX:
        return
    commas = containers = quotes = 0
    for begin in range(0, len(body), _SLICE_BYTES):
        letters = np.frombuffer(body, np.uint8, min(_SLICE_BYTES, len(body) - begin), begin)
        commas += _count(letters == _COMMA)
        containers += _count(_opens(letters))
        quotes += _count(letters == _QUOTE)
        if commas + containers > VALUES_MAX:
            raise _too_many(VALUES_MAX, "commas and brackets")
        await asyncio.sleep(0)  # others are served
    if containers > CONTAINERS_MAX or quotes > 2 * STRINGS_MAX:
        containers, strings = await _outside_strings(body)
        if containers > CONTAINERS_MAX:
            raise _too_many(CONTAINERS_MAX, "arrays and objects")
        if strings > STRINGS_MAX:
            raise _too_many(STRINGS_MAX, "strings")


async def _outside_strings(body: bytes) -> tuple[int, int]:
    """Opening brackets outside strings, and strings, up to the slice with too many."""
    containers = quotes = 0
    is_inside = False
    kept = b""
    for begin in range(0, len(body), _SLICE_BYTES):
        part = kept + body[begin : begin + _SLICE_BYTES]
        cut = (len(part) - len(part.rstrip(b"\\"))) % 2  # a backslash before the next slice
        kept = part[len(part) - cut :]
        part = part[: len(part) - cut].replace(b"\\\\", b"").replace(b'\\"', b"")
        letters = np.frombuffer(part, np.uint8)
        is_quote = letters == _QUOTE
        inside = np.logical_xor.accumulate(is_quote) ^ is_inside
        containers += _count(_opens(letters) & ~inside)
        quotes += _count(is_quote)
        is_inside = quotes % 2 == 1
        if containers > CONTAINERS_MAX or quotes // 2 > STRINGS_MAX:
            break
        await asyncio.sleep(0)
    return containers, quotes // 2


def _opens(letters: npt.NDArray[np.uint8]) -> npt.NDArray[np.bool_]:
    """Where an array or object begins, or a string has its letter."""
    opens: npt.NDArray[np.bool_] = (letters == _BRACKET) | (letters == _BRACE)
    return opens


def _count(of: npt.NDArray[np.bool_]) -> int:
    return int(np.count_nonzero(of))


def _too_many(most: int, what: str) -> HttpRefused:
    return HttpRefused(
        HttpError(
            HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
            "too_many_values",
            f"the request's body has more than {most:,} {what}",
        )
    )


def check_json(scope: Scope, body: bytes, *, is_read: bool = False) -> None:
    """Raise HttpRefused, 400, for a body of type JSON that is not (RFC 8259: in UTF-8).

    `is_read`: it is JSON but for its encoding.
    """
    kind = (header(scope, b"content-type") or "").partition(";")[0].strip().lower()
    if not body or not (kind == "application/json" or kind.endswith("+json")):
        return
    try:
        if not is_read:
            msgspec.json.decode(body, type=msgspec.Raw)
        if not body.isascii():
            body.decode()
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise bad_request("invalid_json", f"the request's body is not JSON: {error}") from None
