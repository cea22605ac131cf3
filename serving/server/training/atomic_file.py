"""Files and directories that are there whole or not at all, whenever the process is killed.

A name appears by `rename`, after what it names has reached the disk, and before the next write
begins: the parent directory is synced too. Leftovers of a killed writer begin with ".partial-".
`locked_directory` keeps other processes out of a directory meanwhile.
"""

import fcntl
import os
import shutil
from pathlib import Path
from typing import IO, Final

from emulator.errors import ConfigError

PARTIAL: Final = ".partial-"


def write_file(path: Path, content: bytes) -> None:
    """Write `path` so that a reader sees the old content or the new one, never a part."""
    partial = path.with_name(f"{PARTIAL}{path.name}")
    write_synced(partial, content)
    partial.replace(path)
    sync(path.parent)


def replace_file(path: Path, content: bytes) -> None:
    """The same without waiting for the disk: a power cut may lose it. `remove_leftovers` of another
    process leaves it alone.
    """
    new = path.with_name(f"{path.name}.new")
    new.write_bytes(content)
    new.replace(path)


def locked_directory(path: Path, lock: str, *, field: str, use: str) -> IO[bytes]:
    """The open file `lock` of a directory, made if need be; closing it lets go, as death does.

    Raises ConfigError for `field` where the directory cannot be written to, or another has it:
    `use` says what another may not do in it.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
        held = (path / lock).open("ab")
    except OSError as error:
        expected = f"a directory that can be written to ({error.strerror})"
        raise ConfigError(field=field, value=path, expected=expected) from error
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        held.close()
        raise ConfigError(
            field=field, value=path, expected=f"a directory in which {use}"
        ) from error
    return held


def write_synced(path: Path, content: bytes) -> None:
    """Write a new file and wait until the disk has it."""
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def publish_directory(partial: Path, path: Path) -> None:
    """Let `partial`, whose files are synced, appear as `path`, which must not exist."""
    sync(partial)
    partial.rename(path)
    sync(path.parent)


def remove_directory(path: Path) -> None:
    """Remove a directory so that no part of it is ever seen under its name."""
    partial = path.with_name(f"{PARTIAL}removed-{path.name}")
    if partial.exists():
        shutil.rmtree(partial)
    path.rename(partial)
    sync(path.parent)
    shutil.rmtree(partial)


def remove_leftovers(directory: Path) -> int:
    """Remove what killed writers left in `directory`; returns how many there were."""
    found = list(directory.glob(f"{PARTIAL}*"))
    for path in found:
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()
    return len(found)


def sync(path: Path) -> None:
    """Wait until the disk has what was written to a file, or the names in a directory."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
