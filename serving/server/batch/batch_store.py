"""The directory of batches: files, batches and answers, written atomically.

    files/ID.json     a file's object and owner; written last, so that a file without it is none
    files/ID.data     its content
    batches/ID.json   a batch; replaced at each change of its status
    batches/ID/       its journal, until its answers are files

Names on the disk are ids that the server has drawn, never a client's.
"""

import os
import shutil
import time
import uuid
from collections.abc import Callable
from dataclasses import replace
from http import HTTPStatus
from pathlib import Path
from typing import IO, Any, Final, TypeVar

import msgspec

from emulator.errors import ConfigError
from serving.server.batch.answer_journal import ERRORS, OUTPUT, AnswerJournal
from serving.server.batch.batch_record import OUTPUT_PURPOSE, StoredBatch, StoredFile
from serving.server.batch.batch_settings import BatchSettings
from serving.server.gateway.http.http_errors import HttpError, HttpRefused
from serving.server.training.atomic_file import (
    PARTIAL,
    remove_leftovers,
    sync,
    write_file,
)

KEY_FILES_MAX: Final = 10_000
"""Files of one key, its batches' own included. Assumed."""

LIVE_BATCHES_MAX: Final = 256
"""Batches of all keys that are not over: each has three files open. Assumed."""

KEY_LIVE_BATCHES_MAX: Final = 64
"""Of one key. Assumed."""

KEY_BATCHES_MAX: Final = 10_000
"""Batches of one key that are kept; the oldest that is over makes room. Assumed."""

_AGAIN_S: Final = 60.0
"""Wall seconds until another batch may be asked for. Assumed."""

Stored = TypeVar("Stored", StoredFile, StoredBatch)


class BatchStore:
    """One server's; `settings.batch_directory` exists and is locked.

    Raises OSError where it is not writable, and ConfigError for a record that cannot be read.
    """

    def __init__(self, settings: BatchSettings, *, wall_s: Callable[[], float] = time.time) -> None:
        assert settings.batch_directory is not None, "a server without a directory has no store"
        self.settings = settings
        self._wall_s = wall_s
        self._files_path = settings.batch_directory / "files"
        self._batches_path = settings.batch_directory / "batches"
        for path in (self._files_path, self._batches_path):
            path.mkdir(exist_ok=True, mode=0o700)
            remove_leftovers(path)
        self.files: dict[str, StoredFile] = _read_all(self._files_path, StoredFile)
        self.batches: dict[str, StoredBatch] = _read_all(self._batches_path, StoredBatch)
        for data in self._files_path.glob("*.data"):
            if data.stem not in self.files:
                data.unlink()

    # Files.

    def file(self, owner: str, name: str) -> StoredFile:
        """The key's file of this id; raises HttpRefused, 404, also for another key's."""
        found = self.files.get(name)
        if found is None or found.owner != owner:
            raise _missing("file", name)
        return found

    def files_of(self, owner: str) -> list[StoredFile]:
        """The key's files, the oldest first."""
        every = [*self.files.values()]  # at once: a thread may add one
        return [file for file in every if file.owner == owner]

    def refuse_more(self, owner: str, more_bytes: int = 0) -> None:
        """Raise HttpRefused, 413, where the key has as many files, or bytes, as it may."""
        files = self.files_of(owner)
        if len(files) >= KEY_FILES_MAX:
            raise _full(f"this key has {len(files):,} files, as many as it may: delete some")
        held_bytes = sum(file.size_bytes for file in files) + more_bytes
        if held_bytes > self.settings.batch_key_bytes:
            most = self.settings.batch_key_bytes
            raise _full(f"this key's files may have {most:,} bytes together: delete some")

    def write_upload(self, content: IO[bytes], name: str) -> int:
        """Write the content of a file to be, and return its bytes. Blocks."""
        partial = self._files_path / f"{PARTIAL}{name}"
        try:
            with partial.open("wb") as file:
                shutil.copyfileobj(content, file, 2**20)
                size_bytes = file.tell()
                file.flush()
                os.fsync(file.fileno())
        except BaseException:
            partial.unlink(missing_ok=True)
            raise
        partial.replace(self.content_path(name))
        return size_bytes

    def add_file(self, file: StoredFile) -> None:
        """Make a file of content that is written."""
        write_file(self._files_path / f"{file.id}.json", msgspec.json.encode(file))
        self.files[file.id] = file

    def delete_file(self, file: StoredFile) -> None:
        """Delete it; raises HttpRefused, 409, while a batch reads it."""
        for batch in self.batches.values():
            if batch.input_file_id == file.id and not batch.status.is_over:
                message = f"{file.id} is the input of {batch.id}, which is {batch.status}"
                raise HttpRefused(HttpError(HTTPStatus.CONFLICT, "file_in_use", message))
        del self.files[file.id]
        (self._files_path / f"{file.id}.json").unlink()
        self.content_path(file.id).unlink()

    def content_path(self, name: str) -> Path:
        """Where the content of the file `name`, an id, lies."""
        return self._files_path / f"{name}.data"

    # Batches.

    def batch(self, owner: str, name: str) -> StoredBatch:
        """The key's batch of this id; raises HttpRefused, 404, also for another key's."""
        found = self.batches.get(name)
        if found is None or found.owner != owner:
            raise _missing("batch", name)
        return found

    def batches_of(self, owner: str) -> list[StoredBatch]:
        """The key's batches, the oldest first."""
        return [batch for batch in self.batches.values() if batch.owner == owner]

    def put(self, batch: StoredBatch) -> None:
        """Write a new or changed batch."""
        if batch.id not in self.batches:
            self._make_room(batch.owner)
        write_file(self._batches_path / f"{batch.id}.json", msgspec.json.encode(batch))
        self.batches[batch.id] = batch

    def journal(self, batch: StoredBatch) -> AnswerJournal:
        """The batch's journal."""
        return AnswerJournal(self._batches_path / batch.id)

    def publish(self, batch: StoredBatch) -> StoredBatch:
        """The batch with files of its answers; makes the same ones again after a death between.

        Blocks. `forget_journal` follows once the batch is put.
        """
        found: dict[str, Any] = {}
        for field, name, journal in (
            ("output_file_id", batch.output_name, OUTPUT),
            ("error_file_id", batch.error_name, ERRORS),
        ):
            source = self._batches_path / batch.id / journal
            if not source.exists() or not source.stat().st_size:
                continue
            content = self.content_path(name)
            if not content.exists():
                sync(source)
                os.link(source, content)
            self.add_file(
                StoredFile(
                    owner=batch.owner,
                    id=name,
                    size_bytes=content.stat().st_size,
                    created_at=int(self._wall_s()),
                    filename=f"{batch.id}_{journal}",
                    purpose=OUTPUT_PURPOSE,
                )
            )
            found[field] = name
        return replace(batch, **found)

    def forget_journal(self, batch: StoredBatch) -> None:
        """Remove the journal of a batch that is over; idempotent."""
        shutil.rmtree(self._batches_path / batch.id, ignore_errors=True)

    def _make_room(self, owner: str) -> None:
        live = [batch for batch in self.batches.values() if not batch.status.is_over]
        own = sum(batch.owner == owner for batch in live)
        if len(live) >= LIVE_BATCHES_MAX or own >= KEY_LIVE_BATCHES_MAX:
            whose, number = "", len(live)
            if own >= KEY_LIVE_BATCHES_MAX:
                whose, number = " of this key", own
            message = f"{number} batches{whose} are not over, as many as may be"
            error = HttpError(
                HTTPStatus.TOO_MANY_REQUESTS, "batches", message, retry_after_s=_AGAIN_S
            )
            raise HttpRefused(error)
        batches = self.batches_of(owner)
        if len(batches) < KEY_BATCHES_MAX:
            return
        oldest = next(batch for batch in batches if batch.status.is_over)
        del self.batches[oldest.id]
        (self._batches_path / f"{oldest.id}.json").unlink()


def new_id(prefix: str) -> str:
    """An id that names a file or batch here and to its clients."""
    return f"{prefix}{uuid.uuid4().hex}"


def _read_all(path: Path, kind: type[Stored]) -> dict[str, Stored]:
    found = []
    for each in path.glob("*.json"):
        try:
            found.append(msgspec.json.decode(each.read_bytes(), type=kind))
        except msgspec.MsgspecError as error:
            expected = f"a directory of this server's, whose records can be read ({error})"
            raise ConfigError("batch_directory", each, expected) from error
    return {one.id: one for one in sorted(found, key=lambda one: (one.created_at, one.id))}


def _missing(kind: str, name: str) -> HttpRefused:
    message = f"no {kind} {name[:80]!r} of this key"
    return HttpRefused(HttpError(HTTPStatus.NOT_FOUND, "not_found", message))


def _full(message: str) -> HttpRefused:
    error = HttpError(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "storage_limit", message)
    return HttpRefused(error)
