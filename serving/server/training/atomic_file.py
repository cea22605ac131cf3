"""Files and directories written atomically, whenever the process is killed.

A name appears by `rename` after its content has reached the disk, and is synced before the next
write. A killed writer's leftovers begin with ".partial-".
"""

import fcntl
import os
import shutil
from pathlib import Path
from typing import IO, Final

from emulator.errors import ConfigError

PARTIAL: Final = ".partial-"


def write_file(path: Path, content: bytes) -> None:
    """Write `path` atomically and durably."""
    partial = path.with_name(f"{PARTIAL}{path.name}")
    write_synced(partial, content)
    partial.replace(path)
    sync(path.parent)


def replace_file(path: Path, content: bytes) -> None:
    """Write atomically without waiting for the disk: a power cut may lose it.

    `remove_leftovers` of another process ignores its temporary file.
    """
    new = path.with_name(f"{path.name}.new")
    new.write_bytes(content)
    new.replace(path)


def locked_directory(path: Path, lock: str, *, field: str, use: str) -> IO[bytes]:
    """The open, locked file `lock` of a directory, created if absent; closing it or death unlocks.

    Raises ConfigError for `field` where it is not writable or locked; `use` says what the lock
    prevents.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
        held = (path / lock).open("ab")
    except OSError as error:
        expected = f"a directory that can be written to ({error.strerror})"
        raise ConfigError(field, path, expected) from error
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        held.close()
        raise ConfigError(field, path, f"a directory in which {use}") from error
    return held


def write_synced(path: Path, content: bytes) -> None:
    """Write a new file to the disk."""
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def publish_directory(partial: Path, path: Path) -> None:
    """Rename `partial`, whose files are synced, to the new `path`."""
    sync(partial)
    partial.rename(path)
    sync(path.parent)


def remove_directory(path: Path) -> None:
    """Remove a directory atomically."""
    partial = path.with_name(f"{PARTIAL}removed-{path.name}")
    if partial.exists():
        shutil.rmtree(partial)
    path.rename(partial)
    sync(path.parent)
    shutil.rmtree(partial)


def remove_leftovers(directory: Path) -> int:
    """Remove killed writers' leftovers; returns their number."""
    found = list(directory.glob(f"{PARTIAL}*"))
    for path in found:
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()
    return len(found)


def sync(path: Path) -> None:
    """Wait until the disk has a file or a directory's names."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
