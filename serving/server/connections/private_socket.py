"""The socket behind a port: a file in a directory that only this user can enter.

Its clients would bypass TLS, though not the key.
"""

import contextlib
import os
import secrets
import socket
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from emulator.errors import ConfigError
from emulator.memory.core_claims import claims_directory, make_private_directory

_PATH_BYTES_MAX: Final = 107
"""Linux's sun_path (unix(7)), without its final zero."""

_SETTLED_S: Final = 60.0
"""A younger socket file may belong to a starting server."""


@contextlib.contextmanager
def private_socket(environment: Mapping[str, str]) -> Iterator[Path]:
    """A path to listen on, removed at the end. Raises ConfigError for a directory that others can
    enter, or too long a path.
    """
    directory = claims_directory(environment)
    make_private_directory(directory)
    _remove_left_behind(directory)
    path = directory / f"grpc-{secrets.token_hex(4)}.sock"
    if len(os.fsencode(path)) > _PATH_BYTES_MAX:
        raise ConfigError(
            "runtime directory",
            directory,
            f"a path of at most {_PATH_BYTES_MAX - len(path.name) - 1} bytes, in which a "
            "socket can lie (XDG_RUNTIME_DIR, else TMPDIR)",
        )
    try:
        yield path
    finally:
        path.unlink(missing_ok=True)


def connected(path: Path, name: str) -> socket.socket:
    """A connection to `path` under `name` in unix(7)'s abstract namespace, where a name ends with
    its socket. Raises OSError.
    """
    made = socket.socket(socket.AF_UNIX)
    try:
        made.setblocking(False)
        made.bind(b"\0" + name.encode())
        made.connect(os.fspath(path))
    except OSError:
        made.close()
        raise
    return made


def _remove_left_behind(directory: Path) -> None:
    for path in directory.glob("grpc-*.sock"):
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as probe:
            if time.time() - path.stat().st_mtime < _SETTLED_S:
                continue
            try:
                probe.connect(str(path))
            except ConnectionRefusedError:
                path.unlink()
