"""The training directory of a server: held while the server runs, free of jobs before it starts."""

import contextlib
import fcntl
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from emulator.errors import ConfigError
from serving.server.day_night.job_record import end_job

_LOCK: Final = "server.lock"


@contextlib.contextmanager
def held_directory(path: Path, *, save_s: float) -> Iterator[None]:
    """Hold `path`, made if need be, against other servers; the kernel lets go for one that dies.

    A job that an earlier server has left in it has `save_s` wall seconds to save and end.
    Raises ConfigError for a directory that cannot be written to, or that another server holds.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
        lock = (path / _LOCK).open("ab")
    except OSError as error:
        expected = f"a directory that can be written to ({error.strerror})"
        raise ConfigError(field="train_dir", value=path, expected=expected) from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            expected = "a directory in which no other server trains"
            raise ConfigError(field="train_dir", value=path, expected=expected) from error
        end_job(path, save_s=save_s)
        yield
