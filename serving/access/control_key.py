"""The control service's key of one run: a private file, drawn at the start and removed at the end.

`--control-key-file` names a file of the user's instead, which stays.
"""

import contextlib
import os
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from emulator.errors import ConfigError
from emulator.memory.core_claims import (
    check_private_directory,
    claims_directory,
    make_private_directory,
)
from serving.access.control_claim import claimed_control_port
from serving.access.private_file import replace_file
from serving.access.secret import draw_secret

ENVIRONMENT: Final = "ULTRASERVE_CONTROL_KEY"
"""Variable with a command's key."""

KEY_LENGTH_MIN: Final = 32
"""Characters of a key that a user wrote into a file."""

_FIELD: Final = "control_key_file"

_FILE_BYTES_MAX: Final = 4_096


def control_key_path(port: int, environment: Mapping[str, str]) -> Path:
    """Path of the key of the control service at `port`."""
    return claims_directory(environment) / f"control-{port}.key"


@contextlib.contextmanager
def held_control_key(
    port: int, environment: Mapping[str, str], *, key_file: Path | None = None
) -> Iterator[str]:
    """The key of the control service at `port` while the block runs.

    Read from `key_file`, else drawn into `control_key_path`, in place of a killed server's. Raises
    ConfigError: `key_file` cannot be used, another server has the port, or the directory is shared.
    """
    if key_file is not None:
        yield read_control_key(key_file)
        return
    path = control_key_path(port, environment)
    make_private_directory(path.parent)
    secret = draw_secret()
    with claimed_control_port(port, environment):
        replace_file(path, f"{secret}\n".encode())
        try:
            yield secret
        finally:
            with contextlib.suppress(OSError):
                if path.read_text(encoding="ascii") == f"{secret}\n":
                    path.unlink()


def console_port_path(port: int, environment: Mapping[str, str]) -> Path:
    """Path of the note of the console's port."""
    return claims_directory(environment) / f"control-{port}.console"


@contextlib.contextmanager
def noted_console_port(
    port: int, console_port: int, environment: Mapping[str, str]
) -> Iterator[None]:
    """Note `console_port` for this user's commands; raises ConfigError for a shared directory."""
    path = console_port_path(port, environment)
    make_private_directory(path.parent)
    replace_file(path, f"{console_port}\n".encode())
    try:
        yield
    finally:
        path.unlink(missing_ok=True)


def find_console_port(port: int, environment: Mapping[str, str]) -> int | None:
    """The noted console's port, or None; raises ConfigError where others could have noted it."""
    path = console_port_path(port, environment)
    if not os.path.lexists(path):
        return None
    check_private_directory(path.parent)
    status, data = _read(path, follow=False)
    return int(data) if status.st_uid == os.getuid() and data.strip().isdigit() else None


def read_control_key(path: Path, *, field: str = _FIELD) -> str:
    """The key in the file that `field` names; raises ConfigError, also for a file that other users
    can read.
    """
    status, data = _read(path, field=field)
    # As ssh has it for private keys: what belongs to another user, such as a mounted secret of
    # root's, is that user's to protect.
    if status.st_uid == os.getuid() and status.st_mode & 0o077:
        raise ConfigError(field, path, f"a file that nobody else can use: chmod 600 {path}")
    return _checked(data, path, field=field)


def find_control_key(
    port: int,
    environment: Mapping[str, str],
    *,
    key_file: Path | None = None,
    on_this_machine: bool = True,
) -> str | None:
    """The key for the control service at `port`, or None.

    From `key_file`, else the environment, else, `on_this_machine`, the file of this user's server.
    Raises ConfigError, also for a server's file that another user could have put there: any
    listener on that port would get the key.
    """
    if key_file is not None:
        return read_control_key(key_file)
    if given := environment.get(ENVIRONMENT, "").strip():
        return given
    if not on_this_machine:
        return None
    path = control_key_path(port, environment)
    if not os.path.lexists(path.parent):
        return None
    check_private_directory(path.parent)
    if not os.path.lexists(path):
        return None
    status, data = _read(path, follow=False)
    if status.st_uid != os.getuid() or status.st_mode & 0o077:
        raise ConfigError(_FIELD, path, "a file of this user's own alone")
    return _checked(data, path)


def _read(path: Path, *, follow: bool = True, field: str = _FIELD) -> tuple[os.stat_result, bytes]:
    """The file's status and first bytes; does not block on a pipe or a device."""
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | (0 if follow else os.O_NOFOLLOW)
    try:
        with os.fdopen(os.open(path, flags), "rb") as file:
            status = os.fstat(file.fileno())
            data = file.read(_FILE_BYTES_MAX + 1) if stat.S_ISREG(status.st_mode) else b""
    except OSError as error:
        raise ConfigError(field, path, f"a file to read ({error.strerror})") from error
    return status, data


def _checked(data: bytes, path: Path, *, field: str = _FIELD) -> str:
    try:
        secret = data.decode("ascii").strip()
    except UnicodeDecodeError:
        secret = ""
    if len(data) > _FILE_BYTES_MAX or len(secret) < KEY_LENGTH_MIN or not secret.isprintable():
        expected = f"one line with a key of at least {KEY_LENGTH_MIN} characters"
        raise ConfigError(field, path, expected)
    return secret
