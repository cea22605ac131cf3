"""Files and directories that are there whole or not at all, whenever the process is killed.

A name appears by `rename`, after what it names has reached the disk, and before the next write
begins: the parent directory is synced too. Leftovers of a killed writer begin with ".partial-".
"""

import os
import shutil
from pathlib import Path
from typing import Final

PARTIAL: Final = ".partial-"


def write_file(path: Path, content: bytes) -> None:
    """Write `path` so that a reader sees the old content or the new one, never a part."""
    partial = path.with_name(f"{PARTIAL}{path.name}")
    write_synced(partial, content)
    partial.replace(path)
    sync_directory(path.parent)


def write_synced(path: Path, content: bytes) -> None:
    """Write a new file and wait until the disk has it."""
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def publish_directory(partial: Path, path: Path) -> None:
    """Let `partial`, whose files are synced, appear as `path`, which must not exist."""
    sync_directory(partial)
    partial.rename(path)
    sync_directory(path.parent)


def remove_directory(path: Path) -> None:
    """Remove a directory so that no part of it is ever seen under its name."""
    partial = path.with_name(f"{PARTIAL}removed-{path.name}")
    if partial.exists():
        shutil.rmtree(partial)
    path.rename(partial)
    sync_directory(path.parent)
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


def sync_directory(path: Path) -> None:
    """Wait until the disk has the names in `path`."""
    sync_file(path)


def sync_file(path: Path) -> None:
    """Wait until the disk has what was written to `path`, by whomever."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
