"""The key that engines prove to each other before keys and values go between them.

Engines of one user on one machine share a file that the first of them draws; on several machines
each is given one.
"""

import contextlib
import os
import secrets
from collections.abc import Mapping
from pathlib import Path

from emulator.errors import ConfigError
from emulator.memory.core_claims import claims_directory, make_private_directory
from serving.access.control_key import read_control_key
from serving.access.listen_address import is_loopback
from serving.access.private_file import replace_file
from serving.access.secret import draw_secret

_FIELD = "kv_key_file"


def read_kv_key(key_file: str | None, *, host: str, environment: Mapping[str, str]) -> bytes:
    """The key of an engine whose port is at `host`: of `key_file`, else of this user's file.

    Raises ConfigError: the file cannot be used, or there is none for a port of other machines.
    """
    if key_file is not None:
        return read_control_key(Path(key_file).expanduser(), field=_FIELD).encode()
    if not is_loopback(host):
        expected = f"a file with the key that all engines share, since the KV port is at {host}"
        raise ConfigError(_FIELD, "(none)", expected)
    path = claims_directory(environment) / "kv.key"
    make_private_directory(path.parent)
    if not path.exists():
        _draw(path)
    return read_control_key(path, field=_FIELD).encode()


def _draw(path: Path) -> None:
    """Put a new key there whole, unless another engine does so first."""
    draft = path.with_name(f"kv-{secrets.token_hex(8)}.key")
    replace_file(draft, f"{draw_secret()}\n".encode())
    try:
        with contextlib.suppress(FileExistsError):  # another's stands
            os.link(draft, path)
    finally:
        draft.unlink()
