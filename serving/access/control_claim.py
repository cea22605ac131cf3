"""A server's claim on a control port, and so on the file of that port's key.

Of two servers that start together the later one would overwrite the earlier one's key, and then
remove the file. The claim is a record lock beside the key, which the kernel releases with the
process and children do not inherit. Its file is removed before it is released; the lock of a
removed file holds nothing.
"""

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from emulator.errors import ConfigError
from emulator.memory.core_claims import claims_directory, is_still_at, make_private_directory

_WAIT_S: Final = 1.0
"""Wall seconds that a claim waits: an engine whose server was killed clears up under the lock."""

_LOOK_EVERY_S: Final = 0.02
_RECORD_BYTES: Final = 16  # a process id in digits, blanks after it


def control_lock_path(port: int, environment: Mapping[str, str]) -> Path:
    """Path of the claim of a control port."""
    return claims_directory(environment) / f"control-{port}.lock"


@contextlib.contextmanager
def claimed_control_port(port: int, environment: Mapping[str, str]) -> Iterator[None]:
    """Hold `port` as this process's control port while the block runs.

    A nested block, also in a child process, holds nothing more; the inner one's end is the end of
    both. Raises ConfigError: another server has it, or the directory is another user's.
    """
    path = control_lock_path(port, environment)
    make_private_directory(path.parent)
    end_s = time.monotonic() + _WAIT_S
    while True:
        with _tried(path) as holder:
            if holder is None or holder == str(os.getppid()):
                yield
                return
        if time.monotonic() > end_s:
            raise ConfigError(
                "control_port",
                port,
                f"another port: a server of process {holder or '(unknown)'} has it",
            )
        time.sleep(_LOOK_EVERY_S)


@contextlib.contextmanager
def held_if_free(path: Path) -> Iterator[bool]:
    """Whether the claim at `path` is free; it stays so while the block runs."""
    with _tried(path) as holder:
        yield holder is None


@contextlib.contextmanager
def _tried(path: Path) -> Iterator[str | None]:
    """Try the lock: None while the block has it, else its holder. Its file ends with it."""
    while True:
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, mode=0o600)
        try:
            held = _lock(file)
            if held and not is_still_at(file, path):
                continue  # its holder has removed it meanwhile
            try:
                yield None if held else _holder(file)
            finally:
                if held and is_still_at(file, path):
                    path.unlink()
            return
        finally:
            os.close(file)  # which lets go of the lock


def _lock(file: int) -> bool:
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):  # either may be what the system says of a held lock
        return False
    os.pwrite(file, str(os.getpid()).ljust(_RECORD_BYTES).encode(), 0)
    return True


def _holder(file: int) -> str:
    return os.pread(file, _RECORD_BYTES, 0).decode(errors="replace").strip()
