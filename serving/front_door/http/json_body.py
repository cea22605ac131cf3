"""Refuses a body that says it is JSON and is not: vLLM's framework answers it in no API's shape."""

from http import HTTPStatus

import msgspec

from serving.front_door.http.asgi import Scope, header
from serving.front_door.http.http_errors import HttpError, HttpRefused


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
