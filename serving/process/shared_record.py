"""One record of bytes, written by one process and read by others on this host at any time.

Both map its file. A write takes a microsecond and waits for no reader; a reader may miss records. A
checksum detects half-written ones on any processor.
"""

import contextlib
import mmap
import os
import struct
import weakref
import zlib
from pathlib import Path
from typing import Final

from emulator.memory.core_claims import make_private_directory

BYTES_MAX: Final = 16_384
"""Of a record with its header: four pages."""

_HEADER: Final = struct.Struct("<II")  # length, checksum
_TRIES: Final = 100
"""Half-written records in a row, after which a reader keeps the last whole one."""


class SharedRecordWriter:
    """Makes the file at `path`; `close` removes it, and so does the end of the process.

    Raises OSError where the file cannot be made, ConfigError where others can write its directory.
    """

    def __init__(self, path: Path) -> None:
        is_first = not path.parent.exists()
        make_private_directory(path.parent)
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            os.ftruncate(file, BYTES_MAX)
            self._memory = mmap.mmap(file, BYTES_MAX)
        finally:
            os.close(file)
        self._remove = weakref.finalize(self, _remove, path, os.getpid(), is_first)

    def write(self, record: bytes) -> None:
        """Replace the record, of at most `BYTES_MAX` less an 8-byte header."""
        size = _HEADER.size
        assert size + len(record) <= BYTES_MAX, f"a record of {len(record)} bytes"
        self._memory[size : size + len(record)] = record
        self._memory[:size] = _HEADER.pack(len(record), zlib.crc32(record))

    def close(self) -> None:
        """Remove the file; readers that have it open keep the record. Idempotent."""
        self._remove()


class SharedRecordReader:
    """Reads the record at `path`; one reader for each writer.

    It removes the file on opening, so that a killed writer leaves none; where it `keeps` the file,
    there may be others, and its directory is theirs to remove.
    """

    def __init__(self, path: Path, *, keeps: bool = False) -> None:
        self._path = path
        self._keeps = keeps
        self._memory: mmap.mmap | None = None
        self._header = b""
        self._record: bytes | None = None

    def read(self) -> bytes | None:
        """The newest record, the same object while it has not changed; None before the first."""
        memory = self._memory or self._open()
        if memory is None:
            return None
        for _ in range(_TRIES):
            header = memory[: _HEADER.size]
            if header == self._header:
                break
            length, checksum = _HEADER.unpack(header)
            record = memory[_HEADER.size : _HEADER.size + length]
            if length and zlib.crc32(record) == checksum:
                self._header, self._record = header, record
                break
        return self._record

    def _open(self) -> mmap.mmap | None:
        try:
            file = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except FileNotFoundError:
            return None
        try:
            if os.fstat(file).st_size < BYTES_MAX:
                return None  # it is being made
            self._memory = mmap.mmap(file, BYTES_MAX, prot=mmap.PROT_READ)
        finally:
            os.close(file)
        if not self._keeps:
            self._path.unlink(missing_ok=True)
        return self._memory


def _remove(path: Path, pid: int, is_first: bool) -> None:
    if os.getpid() != pid:  # a child that was forked meanwhile
        return
    path.unlink(missing_ok=True)
    if is_first:  # and leave no directory of ours behind, unless others use it
        with contextlib.suppress(OSError):
            path.parent.rmdir()
