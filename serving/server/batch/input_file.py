"""The requests of a batch's input file: one JSON object a line, checked once, read one by one.

Source: https://platform.openai.com/docs/api-reference/batch/request-input
"""

from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec

from serving.server.batch.batch_record import LineError

ERRORS_MAX: Final = 100
"""Of a file that are told. Assumed: more lines than a user mends one by one."""

CUSTOM_ID_CHARACTERS_MAX: Final = 512
"""Assumed; longer than any path or digest that names a request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchRequest:
    """The request of one line, and its JSON body."""

    custom_id: str
    body: bytes


class WrongInput(Exception):
    """An input file of which no request may run; `errors` has at least one."""

    def __init__(self, errors: tuple[LineError, ...]) -> None:
        super().__init__(errors[0].message)
        self.errors = errors


class _Line(msgspec.Struct):
    custom_id: msgspec.Raw = msgspec.Raw()
    method: msgspec.Raw = msgspec.Raw()
    url: msgspec.Raw = msgspec.Raw()
    body: msgspec.Raw = msgspec.Raw()


class _Body(msgspec.Struct):
    stream: msgspec.Raw = msgspec.Raw()


_LINE: Final = msgspec.json.Decoder(_Line)
_BODY: Final = msgspec.json.Decoder(_Body)
_UNREADABLE: Final = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)


class InputFile:
    """A checked file: where the line of each request begins. For one thread at a time."""

    def __init__(self, path: Path, begins: "array[int]") -> None:
        self._file = path.open("rb")
        self._begins = begins

    def __len__(self) -> int:
        return len(self._begins)

    def request(self, number: int) -> BatchRequest:
        """The request of this number."""
        self._file.seek(self._begins[number])
        line = _LINE.decode(self._file.readline())
        custom_id = msgspec.json.decode(line.custom_id, type=str)
        return BatchRequest(custom_id=custom_id, body=bytes(line.body))

    def close(self) -> None:
        """Close the file; idempotent."""
        self._file.close()


def read_input(path: Path, *, endpoint: str, requests_max: int, body_bytes_max: int) -> InputFile:
    """The requests of a file for `endpoint`; blank lines are none. Blocks.

    Raises WrongInput for a file without requests, with more than `requests_max`, or with wrong
    lines, and OSError.
    """
    begins = array("q")
    errors: list[LineError] = []
    seen: set[str] = set()
    line_bytes_max = body_bytes_max + 4 * CUSTOM_ID_CHARACTERS_MAX + 2**10
    for number, begin, line in _lines(path, line_bytes_max):
        if not line.strip():
            continue
        begins.append(begin)
        if len(begins) > requests_max:
            message = f"the file has more than {requests_max:,} requests, as many as a batch may"
            raise WrongInput((LineError(code="too_many_requests", message=message),))
        if len(line) <= line_bytes_max:
            error = _error_of(line, endpoint, seen)
        else:
            error = _wrong(f"the line is longer than {line_bytes_max:,} bytes", "line_too_long")
        if error is not None:
            errors.append(LineError(**error, line=number))
            if len(errors) == ERRORS_MAX:
                break
    if errors:
        raise WrongInput(tuple(errors))
    if not begins:
        raise WrongInput((LineError(code="empty_file", message="the file has no request"),))
    return InputFile(path, begins)


def _lines(path: Path, bytes_max: int) -> Iterator[tuple[int, int, bytes]]:
    """Number from 1, first byte, and content of each line; of a long one the beginning."""
    with path.open("rb") as file:
        number, begin = 1, 0
        while line := file.readline(bytes_max + 1):
            size = len(line)
            part = line
            while not part.endswith(b"\n") and (part := file.readline(bytes_max + 1)):
                size += len(part)
            yield number, begin, line.rstrip(b"\r\n") if size == len(line) else line
            number, begin = number + 1, begin + size


def _error_of(line: bytes, endpoint: str, seen: set[str]) -> dict[str, Any] | None:
    """What is wrong with a line, or None; adds its custom_id to `seen`."""
    try:
        read = _LINE.decode(line)
        line.decode()
    except _UNREADABLE as error:
        return _wrong(f"the line is no JSON object: {error}", "invalid_json_line")
    custom_id = _text(read.custom_id)
    if custom_id is None or not 1 <= len(custom_id) <= CUSTOM_ID_CHARACTERS_MAX:
        expected = f"a text of 1 to {CUSTOM_ID_CHARACTERS_MAX} characters"
        return _expected("custom_id", read.custom_id, expected)
    if custom_id in seen:
        message = f"custom_id: expected another for each request, got {custom_id!r} again"
        return _wrong(message, "duplicate_custom_id", "custom_id")
    seen.add(custom_id)
    if _text(read.method) != "POST":
        return _expected("method", read.method, "POST")
    if _text(read.url) != endpoint:
        return _expected("url", read.url, f"{endpoint}, the batch's endpoint")
    try:
        body = _BODY.decode(read.body)
    except _UNREADABLE:
        return _expected("body", read.body, "an object")
    if bytes(body.stream) not in (b"", b"null", b"false"):
        return _expected("body.stream", body.stream, "false: a batch's answers are whole")
    return None


def _text(raw: msgspec.Raw) -> str | None:
    try:
        return msgspec.json.decode(raw, type=str)
    except _UNREADABLE:
        return None


def _expected(field: str, raw: msgspec.Raw, expected: str) -> dict[str, Any]:
    given = bytes(raw)[:80].decode(errors="replace") or "nothing"
    return _wrong(f"{field}: expected {expected}, got {given}", "invalid_request", field)


def _wrong(message: str, code: str, param: str | None = None) -> dict[str, Any]:
    return {"code": code, "message": message, "param": param}
