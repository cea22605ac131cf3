"""Adds and revokes keys in a key file; its comments and layout stay.

Edits the text, and refuses one that does not parse to the intended keys. The file is replaced
atomically, under a lock.
"""

import contextlib
import fcntl
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from emulator.errors import ConfigError
from serving.access.key_file import FILE_BYTES_MAX, KEYS_MAX, LIMITS, parse_keys, read_key_file
from serving.access.private_file import replace_file
from serving.access.stored_key import StoredKey

_ABOVE: Final = r"^(?P<above>(?:[ \t]*(?:#.*)?\n)*)"
_TABLE: Final = re.compile(_ABOVE + r"(?P<header>[ \t]*\[)", re.MULTILINE)
_END: Final = re.compile(_ABOVE + r"(?:[ \t]*(?:#.*)?)\Z", re.MULTILINE)
"""A table's header, and the text's end, each with the comments and blank lines above it."""

_WAIT_S: Final = 10.0
"""Wall seconds to wait for other commands that change the file; each takes some hundredths."""

_LOOK_EVERY_S: Final = 0.02


def add_key(path: Path, key: StoredKey) -> None:
    """Append `key`; raises ConfigError for a taken name or a full, wrong or unwritable file."""
    with _locked(path):
        text, keys = _read(path)
        if any(other.client.name == key.client.name for other in keys):
            raise ConfigError("name", key.client.name, f"a name that {path} does not have")
        if len(keys) >= KEYS_MAX:
            raise ConfigError(str(path), f"{len(keys)} keys", f"< {KEYS_MAX}")
        gap = "" if not text else "\n" if text.endswith("\n") else "\n\n"
        _replace(path, f"{text}{gap}{key_text(key)}", (*keys, key))


def revoke_key(path: Path, name: str) -> None:
    """Remove the key `name`; raises ConfigError when there is none, or as `add_key`."""
    with _locked(path):
        text, keys = _read(path)
        names = [key.client.name for key in keys]
        if name not in names:
            raise ConfigError("name", name, f"a key of {path}")
        at = names.index(name)
        _replace(path, _without_table(text, at), (*keys[:at], *keys[at + 1 :]))


def key_text(key: StoredKey) -> str:
    """The `[[key]]` table of a key; names and hashes need no escapes."""
    limits = key.client.limits
    scopes = ", ".join(f'"{scope}"' for scope in sorted(key.scopes))
    lines = [
        "[[key]]",
        f'name = "{key.client.name}"',
        f'hash = "{key.hash}"',
        f"scopes = [{scopes}]",
        f'class = "{key.client.work_class}"',
    ]
    for name in LIMITS:
        value = getattr(limits, name)
        if value is not None:
            lines.append(f"{name} = {value}")
    if key.expires is not None:
        lines.append(f"expires = {key.expires.isoformat()}")
    return "\n".join(lines) + "\n"


def _read(path: Path) -> tuple[str, tuple[StoredKey, ...]]:
    if not path.exists():
        return "", ()
    keys, _ = read_key_file(path)
    return path.read_text(encoding="utf-8"), keys


def _without_table(text: str, at: int) -> str:
    """The text without table number `at`; comments above it and above the next one stay."""
    tables = list(_TABLE.finditer(text))
    if at >= len(tables):
        return text
    following = tables[at + 1] if at + 1 < len(tables) else _END.search(text)
    end = len(text) if following is None else following.start("above")
    return text[: tables[at].start("header")] + text[end:]


def _replace(path: Path, text: str, meant: tuple[StoredKey, ...]) -> None:
    """Write the file: a new one private, an old one with its owner and mode."""
    data = text.encode()
    if len(data) > FILE_BYTES_MAX:
        raise ConfigError(str(path), "(too long)", f"at most {FILE_BYTES_MAX:,} bytes")
    if parse_keys(data, where=str(path)) != meant:
        raise ConfigError(str(path), "(its layout)", "[[key]] tables; edit this one by hand")
    target = path.resolve()
    try:
        replace_file(target, data, like=target.stat() if target.exists() else None)
    except OSError as error:
        raise _unwritable(path, error) from error


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Lock the directory, which survives the file's replacement."""
    try:
        directory = os.open(path.resolve().parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise _unwritable(path, error) from error
    try:
        _lock(directory, path)
        yield
    finally:
        os.close(directory)


def _lock(directory: int, path: Path) -> None:
    """Raises ConfigError after _WAIT_S: any reader can hold the lock for ever."""
    end_s = time.monotonic() + _WAIT_S
    while True:
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(directory, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        if time.monotonic() > end_s:
            raise ConfigError(
                "file", path, f"a file whose directory no other program holds for {_WAIT_S:g} s"
            )
        time.sleep(_LOOK_EVERY_S)


def _unwritable(path: Path, error: OSError) -> ConfigError:
    return ConfigError("file", path, f"a file to write ({error.strerror})")
