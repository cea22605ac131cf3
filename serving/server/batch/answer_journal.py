"""The answers of a batch so far: lines of its output and error files, appended one by one.

A line is there once its bytes are: a server that is killed loses no answer, and runs what has no
line again. A power cut may lose the newest lines, whose requests run again too.

Source of a line: https://platform.openai.com/docs/api-reference/batch/request-output
"""

import errno
import os
from pathlib import Path
from typing import IO, Any, Final

import msgspec

OUTPUT: Final = "output.jsonl"
ERRORS: Final = "errors.jsonl"
_ID: Final = "batch_req_"


class _Named(msgspec.Struct):
    id: str


_NAMED: Final = msgspec.json.Decoder(_Named)


class AnswerJournal:
    """The journal of one batch in `directory`, created if absent; cuts off a torn last line.

    `completed` and `failed` are the numbers of requests with a line in either file: no request has
    two.
    """

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._batch = directory.name
        self._output, self.completed = _opened(directory / OUTPUT)
        self._errors, self.failed = _opened(directory / ERRORS)

    def has(self, number: int) -> bool:
        """Whether the request has its line."""
        return number in self.completed or number in self.failed

    def answer(
        self, number: int, custom_id: str, *, status: int, request_id: str, body: bytes
    ) -> None:
        """Append a request's response; raises OSError, and nothing is appended."""
        response = {"status_code": status, "request_id": request_id, "body": _json(body)}
        self._append(number, custom_id, response=response, error=None, failed=status >= 400)

    def fail(self, number: int, custom_id: str, *, code: str, message: str) -> None:
        """Append the error of a request that has no response; raises OSError likewise."""
        error = {"code": code, "message": message}
        self._append(number, custom_id, response=None, error=error, failed=True)

    def close(self) -> None:
        """Close the files; idempotent."""
        self._output.close()
        self._errors.close()

    def _append(self, number: int, custom_id: str, *, failed: bool, **line: Any) -> None:
        assert not self.has(number), f"request {number} of {self._batch} is answered twice"
        named = {"id": f"{_ID}{self._batch}_{number}", "custom_id": custom_id}
        content = msgspec.json.encode({**named, **line}) + b"\n"
        _write(self._errors if failed else self._output, content)
        (self.failed if failed else self.completed).add(number)


def _json(body: bytes) -> Any:
    """A body as JSON on one line; text that is none as a string."""
    try:
        return msgspec.json.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return body.decode(errors="replace")


def _opened(path: Path) -> tuple[IO[bytes], set[int]]:
    file = path.open("a+b", buffering=0)
    numbers: set[int] = set()
    whole_bytes = 0
    with path.open("rb") as lines:
        for line in lines:
            if not line.endswith(b"\n"):
                break
            numbers.add(int(_NAMED.decode(line).id.rpartition("_")[2]))
            whole_bytes += len(line)
    file.truncate(whole_bytes)
    return file, numbers


def _write(file: IO[bytes], content: bytes) -> None:
    """Append all of `content` or, raising OSError, nothing."""
    before_bytes = os.fstat(file.fileno()).st_size
    try:
        if file.write(content) != len(content):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    except OSError:
        file.truncate(before_bytes)
        raise
