"""The HTTP paths of files and batches, for the key that owns them.

Sources: https://platform.openai.com/docs/api-reference/files,
https://platform.openai.com/docs/api-reference/batch
"""

import asyncio
import re
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from typing import Any, Final, NoReturn
from urllib.parse import parse_qs

import msgspec
from starlette.datastructures import FormData, UploadFile
from starlette.datastructures import Headers as FormHeaders
from starlette.formparsers import MultiPartException, MultiPartParser

from emulator.errors import ConfigError
from serving.policy.admission.work import Client
from serving.policy.day_night.options import duration_s
from serving.server.batch.batch_record import (
    BATCH_PURPOSE,
    ENDPOINTS,
    BatchEvent,
    IllegalBatchEvent,
    StoredBatch,
    StoredFile,
)
from serving.server.batch.batch_runner import BatchRunner
from serving.server.batch.batch_store import BatchStore, new_id
from serving.server.gateway.http.asgi import (
    Headers,
    Receive,
    Scope,
    Send,
    body_headers,
    path_of,
    respond,
)
from serving.server.gateway.http.http_errors import HttpError, HttpRefused, bad_request
from serving.server.gateway.http.request_body import BodyReader

WINDOW_S_MAX: Final = 7 * 86_400.0
"""Of a completion_window, by the wall. OpenAI has 24 h alone; assumed: a week is a batch's most."""

UPLOADS_MAX: Final = 4
"""Files of one key that arrive at a time. Assumed."""

_FORM_BYTES: Final = 64 * 2**10
"""Of an upload beside its file."""

_PART_BYTES: Final = 2**20
_NAME_CHARACTERS_MAX: Final = 255
_WINDOW_CHARACTERS_MAX: Final = 16
_METADATA_MAX, _METADATA_KEY_MAX, _METADATA_VALUE_MAX = 16, 64, 512
"""OpenAI's: entries, and characters of a name and a value."""

_ROUTE: Final = re.compile(r"(?P<kind>/v1/(?:files|batches))(?:/(?P<id>[^/]+)(?P<verb>/[^/]+)?)?")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asked:
    """A request for one of the paths; `id` is empty for the whole list."""

    scope: Scope
    receive: Receive
    send: Send
    client: Client
    headers: Headers
    id: str


_Handler = Callable[[_Asked], Awaitable[None]]


class _BatchBody(msgspec.Struct):
    input_file_id: str
    endpoint: str
    completion_window: str
    metadata: dict[str, str] | None = None
    output_expires_after: msgspec.Raw = msgspec.Raw()


class BatchApi:
    """The paths /v1/files and /v1/batches; bodies come through `bodies`."""

    def __init__(
        self,
        store: BatchStore,
        runner: BatchRunner,
        bodies: BodyReader,
        *,
        wall_s: Callable[[], float] = time.time,
    ) -> None:
        self._store = store
        self._runner = runner
        self._bodies = bodies
        self._wall_s = wall_s
        self._uploads: Counter[str] = Counter()
        self._handlers: Mapping[str, Mapping[str, _Handler]] = {
            "/v1/files": {"GET": self._list_files, "POST": self._upload},
            "/v1/files/ID": {"GET": self._show_file, "DELETE": self._delete_file},
            "/v1/files/ID/content": {"GET": self._content},
            "/v1/batches": {"GET": self._list_batches, "POST": self._create},
            "/v1/batches/ID": {"GET": self._show_batch},
            "/v1/batches/ID/cancel": {"POST": self._cancel},
        }

    def has(self, path: str) -> bool:
        """Whether the path is one of its own."""
        return _ROUTE.fullmatch(path) is not None

    async def answer(
        self, scope: Scope, receive: Receive, send: Send, *, client: Client, headers: Headers
    ) -> None:
        """Answer one request; raises HttpRefused or ClientGone before."""
        path, method = path_of(scope), scope["method"]
        found = _ROUTE.fullmatch(path)
        assert found is not None, path
        name = found["id"] or ""
        handlers = self._handlers.get(f"{found['kind']}{name and '/ID'}{found['verb'] or ''}")
        if handlers is None:
            _refuse(HTTPStatus.NOT_FOUND, "not_found", f"there is nothing at {path[:200]}")
        if method not in handlers:
            takes = ", ".join(handlers)
            message = f"{path[:200]} does not take {method}, but {takes}"
            code = HTTPStatus.METHOD_NOT_ALLOWED
            raise HttpRefused(HttpError(code, "method_not_allowed", message, allows=takes))
        asked = _Asked(
            scope=scope,
            receive=receive,
            send=send,
            client=client,
            headers=headers,
            id=name,
        )
        try:
            await handlers[method](asked)
        except OSError as error:
            message = f"the batch directory cannot be used: {error.strerror}"
            _refuse(HTTPStatus.INSUFFICIENT_STORAGE, "storage_failed", message)

    # Files.

    async def _upload(self, asked: _Asked) -> None:
        owner = asked.client.name
        self._store.refuse_more(owner)
        if self._uploads[owner] >= UPLOADS_MAX:
            message = f"{UPLOADS_MAX} files of this key arrive at this moment, as many as may"
            error = HttpError(
                HTTPStatus.TOO_MANY_REQUESTS, "uploads", message, retry_after_s=1.0, closes=True
            )
            raise HttpRefused(error)
        self._uploads[owner] += 1
        try:
            file = await self._received(asked)
        finally:
            self._uploads[owner] -= 1
            if not self._uploads[owner]:
                del self._uploads[owner]
        await _answer(asked, file.shown())

    async def _received(self, asked: _Asked) -> StoredFile:
        form = await self._form(asked)
        try:
            return await self._stored(asked.client.name, _file_of(form))
        finally:
            await form.close()

    async def _form(self, asked: _Asked) -> FormData:
        """The form of an upload, its file on the disk beyond a MiB."""
        bytes_max = self._store.settings.batch_file_bytes + _FORM_BYTES
        arriving = self._bodies.parts(
            asked.scope, asked.receive, key=asked.client.name, bytes_max=bytes_max
        )
        head = FormHeaders(scope=asked.scope)
        try:
            async with aclosing(arriving) as parts:
                return await MultiPartParser(
                    head, parts, max_files=1, max_fields=8, max_part_size=2**10
                ).parse()
        except (MultiPartException, KeyError, ValueError) as wrong:
            message = f"the body is no multipart/form-data with one file: {wrong}"
            error = HttpError(HTTPStatus.BAD_REQUEST, "invalid_form", message, closes=True)
            raise HttpRefused(error) from None

    async def _stored(self, owner: str, upload: UploadFile) -> StoredFile:
        name = new_id("file-")
        self._store.refuse_more(owner, upload.size or 0)
        size_bytes = await asyncio.to_thread(self._store.write_upload, upload.file, name)
        file = StoredFile(
            owner=owner,
            id=name,
            size_bytes=size_bytes,
            created_at=int(self._wall_s()),
            filename=(upload.filename or name)[:_NAME_CHARACTERS_MAX],
            purpose=BATCH_PURPOSE,
        )
        try:
            self._store.add_file(file)
        except BaseException:
            self._store.content_path(name).unlink(missing_ok=True)
            raise
        return file

    async def _list_files(self, asked: _Asked) -> None:
        query = _query(asked.scope)
        files = self._store.files_of(asked.client.name)
        if "purpose" in query:
            files = [file for file in files if file.purpose == query["purpose"]]
        if query.get("order", "desc") != "asc":
            files.reverse()
        shown = [file.shown() for file in files]
        await _answer(asked, _page(shown, query, default=10_000, most=10_000))

    async def _show_file(self, asked: _Asked) -> None:
        await _answer(asked, self._store.file(asked.client.name, asked.id).shown())

    async def _delete_file(self, asked: _Asked) -> None:
        file = self._store.file(asked.client.name, asked.id)
        self._store.delete_file(file)
        await _answer(asked, {"id": file.id, "object": "file", "deleted": True})

    async def _content(self, asked: _Asked) -> None:
        stored = self._store.file(asked.client.name, asked.id)
        with self._store.content_path(stored.id).open("rb") as file:
            headers = body_headers(b"", b"application/octet-stream")[:1]
            length = (b"content-length", str(stored.size_bytes).encode())
            start = {"type": "http.response.start", "status": HTTPStatus.OK.value}
            await asked.send({**start, "headers": [*headers, length, *asked.headers]})
            read = partial(file.read, _PART_BYTES)
            while part := await asyncio.to_thread(read):
                await asked.send({"type": "http.response.body", "body": part, "more_body": True})
            await asked.send({"type": "http.response.body", "body": b""})

    # Batches.

    async def _create(self, asked: _Asked) -> None:
        with await self._bodies.read(asked.scope, asked.receive, key=asked.client.name) as held:
            body = held.take()
        try:
            given = msgspec.json.decode(body, type=_BatchBody)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise bad_request("invalid_request", f"the request's body: {error}") from None
        window_s = _checked(given)
        owner = asked.client.name
        file = self._store.file(owner, given.input_file_id)
        self._store.refuse_more(owner)  # its answers are files too
        if file.purpose != BATCH_PURPOSE:
            raise _wrong("input_file_id", f"a file for {file.purpose}", f"one for {BATCH_PURPOSE}")
        now_s = self._wall_s()
        batch = StoredBatch(
            owner=owner,
            id=new_id("batch_"),
            endpoint=given.endpoint,
            input_file_id=file.id,
            completion_window=given.completion_window,
            created_at=int(now_s),
            expires_at=int(now_s + window_s),
            output_name=new_id("file-"),
            error_name=new_id("file-"),
            metadata=given.metadata,
        )
        self._runner.submit(batch)
        await _answer(asked, batch.shown())

    async def _show_batch(self, asked: _Asked) -> None:
        batch = self._store.batch(asked.client.name, asked.id)
        await _answer(asked, self._runner.seen(batch).shown())

    async def _cancel(self, asked: _Asked) -> None:
        batch = self._store.batch(asked.client.name, asked.id)
        try:
            cancelled = self._runner.cancel(batch)
        except IllegalBatchEvent as error:
            message = f"{batch.id} cannot be cancelled: {error}"
            event = BatchEvent.CANCEL
            raise HttpRefused(HttpError(HTTPStatus.CONFLICT, f"illegal_{event}", message)) from None
        await _answer(asked, cancelled.shown())

    async def _list_batches(self, asked: _Asked) -> None:
        batches = reversed(self._store.batches_of(asked.client.name))
        shown = [self._runner.seen(batch).shown() for batch in batches]
        await _answer(asked, _page(shown, _query(asked.scope), default=20, most=100))


def _file_of(form: FormData) -> UploadFile:
    """The file of an upload for a batch; raises HttpRefused for another form."""
    others = sorted(set(form) - {"file", "purpose"})
    if others:
        raise _wrong(others[0][:80], "given", "no field but file and purpose")
    if form.get("purpose") != BATCH_PURPOSE:
        raise _wrong("purpose", str(form.get("purpose"))[:80], BATCH_PURPOSE)
    file = form.get("file")
    if not isinstance(file, UploadFile):
        raise _wrong("file", "none", "a file of JSON lines")
    return file


def _checked(given: _BatchBody) -> float:
    """Seconds of a new batch's window; raises HttpRefused for a wrong field."""
    if given.endpoint not in ENDPOINTS:
        raise _wrong("endpoint", given.endpoint[:80], " or ".join(ENDPOINTS))
    if bytes(given.output_expires_after) not in (b"", b"null"):
        raise _wrong("output_expires_after", "one", "none: files stay until they are deleted")
    metadata = given.metadata or {}
    if len(metadata) > _METADATA_MAX or any(
        len(name) > _METADATA_KEY_MAX or len(value) > _METADATA_VALUE_MAX
        for name, value in metadata.items()
    ):
        expected = (
            f"{_METADATA_MAX} entries, names of {_METADATA_KEY_MAX} and values of "
            f"{_METADATA_VALUE_MAX} characters, at most"
        )
        raise _wrong("metadata", "more", expected)
    text = given.completion_window
    try:
        window_s = duration_s(text, field="completion_window")
    except ConfigError:
        window_s = 0.0
    if not 1.0 <= window_s <= WINDOW_S_MAX or len(text) > _WINDOW_CHARACTERS_MAX:
        raise _wrong("completion_window", text[:80], "24h, or another time of 1s to 7d")
    return window_s


def _query(scope: Scope) -> dict[str, str]:
    given = parse_qs(bytes(scope.get("query_string", b"")).decode("latin-1"))
    return {name: values[-1] for name, values in given.items()}


def _page(
    shown: Sequence[dict[str, Any]], query: dict[str, str], *, default: int, most: int
) -> dict[str, Any]:
    """The page of `shown` that follows `after`, of at most `limit`; raises HttpRefused."""
    text = query.get("limit", str(default))
    if len(text) > 9 or not text.isdecimal() or not 1 <= int(text) <= most:
        raise _wrong("limit", text[:80], f"1 to {most:,}")
    begin = 0
    if "after" in query:
        ids = [one["id"] for one in shown]
        if query["after"] not in ids:
            raise _wrong("after", query["after"][:80], "the id of an earlier page's last")
        begin = ids.index(query["after"]) + 1
    page = shown[begin : begin + int(text)]
    return {
        "object": "list",
        "data": page,
        "first_id": page[0]["id"] if page else None,
        "last_id": page[-1]["id"] if page else None,
        "has_more": begin + len(page) < len(shown),
    }


async def _answer(asked: _Asked, content: dict[str, Any]) -> None:
    body = msgspec.json.encode(content)
    await respond(asked.send, HTTPStatus.OK, [*body_headers(body), *asked.headers], body)


def _wrong(field: str, value: object, expected: str) -> HttpRefused:
    return bad_request("invalid_request", f"{field}={value}: expected {expected}", param=field)


def _refuse(status: HTTPStatus, code: str, message: str) -> NoReturn:
    raise HttpRefused(HttpError(status, code, message))
