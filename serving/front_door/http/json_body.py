"""Refuses a body that says it is JSON and is not, which vLLM's framework answers in no API's shape,
and one of so many values that reading it would take many times its bytes.
"""

from http import HTTPStatus
from typing import Final

import msgspec

from serving.front_door.http.asgi import Scope, header
from serving.front_door.http.http_errors import HttpError, HttpRefused

VALUES_MAX: Final = 1_000_000
"""Commas and opening brackets of a body, which bound its values: 16 MiB of `[],` take 354 MiB as
Python's objects. More than any context of tokens has. Assumed."""

_SLICE_BYTES: Final = 2**20


def refuse_values(body: bytes) -> None:
    """Raise HttpRefused, 413, for a body that would be far more in memory than it is in bytes.

    Those in strings count too, so that nothing is parsed for it.
    """
    if len(body) <= VALUES_MAX:
        return
    marks = 0
    for begin in range(0, len(body), _SLICE_BYTES):
        end = begin + _SLICE_BYTES
        marks += sum(body.count(mark, begin, end) for mark in (b",", b"[", b"{"))
        if marks > VALUES_MAX:
            raise HttpRefused(
                HttpError(
                    status=HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
                    code="too_many_values",
                    message=f"the request's body has more than {VALUES_MAX:,} commas and brackets",
                )
            )


def check_json(scope: Scope, body: bytes, *, is_read: bool = False) -> None:
    """Raise HttpRefused, 400, for a body of type JSON that is not (RFC 8259: in UTF-8).

    `is_read`: it was already found to be JSON, but for its letters.
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
        raise HttpRefused(
            HttpError(
                status=HTTPStatus.BAD_REQUEST,
                code="invalid_json",
                message=f"the request's body is not JSON: {error}",
            )
        ) from None
