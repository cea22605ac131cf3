"""Claims of a process on this host's chips, so that no two serve on the same cores.

Advisory record locks: one file per UltraServer and user, one record per chip with the holder's
process id. The kernel releases records when their process ends in any way; forked children do not
inherit them. So the process that lives as long as the server makes the claim, one at a time:
closing the file once releases all records. The last holder to release removes the file.
"""

import contextlib
import fcntl
import os
import stat
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from emulator.errors import ConfigError
from emulator.memory.neuron_environment import busy

_RECORD_BYTES: Final = 16  # a process id in digits, blanks after it

_TRIES: Final = 20
_TRY_AGAIN_S: Final = 0.005
"""A releasing process takes the whole file for less than a millisecond, to see whether others
remain; a chip still taken after 20 tries has a holder."""

_OPENED: Final = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW


class CoreClaim:
    """A process's claim on `chips` from `first_chip`, until `release`.

    The machine is the one named `ultraserver`, of kind `system`. Raises NeuronError (NRT_NC_BUSY),
    with a holder's id and nothing claimed; ConfigError when `directory` is another user's.
    """

    def __init__(
        self,
        *,
        system: str,
        ultraserver: str,
        first_chip: int,
        chips: int,
        cores_per_chip: int,
        directory: Path,
    ) -> None:
        make_private_directory(directory)
        self._path = directory / f"{system}.{ultraserver}.claims"
        self._file: int | None = None
        while self._file is None:
            self._file = os.open(self._path, _OPENED, mode=0o600)
            try:
                _lock_all(self._file, range(first_chip, first_chip + chips), cores_per_chip)
            except BaseException:
                self.release()
                raise
            if not is_still_at(self._file, self._path):  # its last holder has removed it meanwhile
                os.close(self._file)
                self._file = None

    def release(self) -> None:
        """Release the claim; idempotent."""
        file, self._file = self._file, None
        if file is not None:
            # Its own records first: of several that let go together, the last one finds none.
            fcntl.lockf(file, fcntl.LOCK_UN)
            if _lock_range(file, 0, 0) and is_still_at(file, self._path):  # none is left
                self._path.unlink()
            os.close(file)  # closing lets go of the whole file


def is_still_at(file: int, path: Path) -> bool:
    """Whether the open `file` is the one at `path`."""
    try:
        there = path.lstat()
    except FileNotFoundError:
        return False
    return (there.st_dev, there.st_ino) == (os.fstat(file).st_dev, os.fstat(file).st_ino)


def claims_directory(variables: Mapping[str, str]) -> Path:
    """A user's directory of claims and run keys: in the runtime directory, or the temporary."""
    runtime = variables.get("XDG_RUNTIME_DIR", "")
    if runtime:
        return Path(runtime) / "ultraserve"
    return Path(tempfile.gettempdir()) / f"ultraserve-{os.getuid()}"


def make_private_directory(directory: Path) -> None:
    """Make it where it is missing; raises ConfigError as `check_private_directory`."""
    with contextlib.suppress(FileExistsError):  # something else, or a link to nothing
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    check_private_directory(directory)


def check_private_directory(directory: Path) -> None:
    """Raise ConfigError when it is no directory, a link, another user's, or open to others."""
    status = directory.lstat()
    is_own = stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid()
    if not is_own or status.st_mode & 0o077:
        raise ConfigError(
            "runtime directory",
            directory,
            "a directory of this user's own, which nobody else can enter (mode 700)",
        )


def _lock_all(file: int, chips: range, cores_per_chip: int) -> None:
    """Take the records of `chips`; raises NeuronError for the first that another process has."""
    for chip in chips:
        if not _lock(file, chip):
            cores = range(chips.start * cores_per_chip, chips.stop * cores_per_chip)
            taken = range(chip * cores_per_chip, (chip + 1) * cores_per_chip)
            raise busy(cores, shared=taken, holder=_holder(file, chip))


def _lock(file: int, chip: int) -> bool:
    """Take the record of a chip and sign it; False when another process has it."""
    start = chip * _RECORD_BYTES
    for _ in range(_TRIES):
        if _lock_range(file, start, _RECORD_BYTES):
            break
        time.sleep(_TRY_AGAIN_S)
    else:
        return False
    os.pwrite(file, str(os.getpid()).ljust(_RECORD_BYTES).encode(), start)
    return True


def _lock_range(file: int, start: int, length: int) -> bool:
    """Take bytes of the file, all from `start` on when `length` is 0; False when some are held."""
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, length, start)
    except (BlockingIOError, PermissionError):  # either may be what the system says of a held lock
        return False
    return True


def _holder(file: int, chip: int) -> str:
    signed = os.pread(file, _RECORD_BYTES, chip * _RECORD_BYTES).decode(errors="replace").strip()
    return f"process {signed}" if signed else "another process"
