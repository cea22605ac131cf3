"""The file of clients' keys: TOML, read or refused as a whole.

    [[key]]
    name = "alice"
    hash = "sha256:..."              # of the secret, which is stored nowhere
    scopes = ["inference"]           # or "control", or both; this is the default
    class = "interactive"            # or "batch": the default of its requests
    requests_per_minute = 600        # no limit where a line is missing
    tokens_per_minute = 1_000_000
    concurrent = 64
    expires = 2027-01-31T12:00:00Z

Errors name the file and the key or line, and never show `hash` or an unknown field, where a secret
may stand.
"""

import os
import stat
import tomllib
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from emulator.errors import ConfigError
from serving.access.stored_key import Scope, StoredKey, check_name
from serving.policy.admission.work import Client, KeyLimits, WorkClass

FILE_BYTES_MAX: Final = 2**20
KEYS_MAX: Final = 1_024
"""Every request is compared with all of them."""

LIMITS: Final = ("requests_per_minute", "tokens_per_minute", "concurrent")
_FIELDS: Final = ("name", "hash", "scopes", "class", *LIMITS, "expires")


def read_key_file(path: Path) -> tuple[tuple[StoredKey, ...], os.stat_result]:
    """All keys, and the file's status.

    Raises ConfigError: unreadable, writable by others, changing meanwhile, or wrong.
    """
    # A pipe without a writer would be waited for; it is refused instead.
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK
    try:
        with os.fdopen(os.open(path, flags), "rb") as file:
            status = os.fstat(file.fileno())
            check_owner(path, status)
            data = file.read(FILE_BYTES_MAX + 1)
            after = os.fstat(file.fileno())
    except OSError as error:
        raise _unusable(path, f"a file to read ({error.strerror})") from error
    if (status.st_size, status.st_mtime_ns) != (after.st_size, after.st_mtime_ns):
        raise _unusable(path, "a file that nobody writes to while it is read")
    if len(data) > FILE_BYTES_MAX:
        raise ConfigError(str(path), "(too long)", f"at most {FILE_BYTES_MAX:,} bytes")
    return parse_keys(data, where=str(path)), status


def check_owner(path: Path, status: os.stat_result) -> None:
    """Raise ConfigError for a file that others could write, giving themselves keys.

    The owner may be root, as of Kubernetes' secrets.
    """
    if not stat.S_ISREG(status.st_mode):
        raise _unusable(path, "a regular file")
    if status.st_uid not in (os.getuid(), 0) or status.st_mode & 0o022:
        raise _unusable(path, f"a file that nobody else can write: chmod go-w {path}")


def _unusable(path: Path, expected: str) -> ConfigError:
    return ConfigError("api_keys", path, expected)


def is_open_to_readers(status: os.stat_result) -> bool:
    """Whether other users can read it; from a hash a chosen secret can be guessed."""
    return bool(status.st_mode & 0o044)


def parse_keys(data: bytes, *, where: str) -> tuple[StoredKey, ...]:
    """The keys in `data`; raises ConfigError, which begins with `where`."""
    try:
        document = tomllib.loads(data.decode("utf-8"))
    except (ValueError, RecursionError) as error:  # TOML's and UTF-8's errors are ValueErrors
        reason = "not UTF-8" if isinstance(error, UnicodeDecodeError) else _reason(error)
        raise ConfigError(where, "(not read)", f"TOML ({reason})") from error
    entries = document.pop("key", [])
    if document:
        raise ConfigError(where, _words(document), "[[key]] tables and nothing else")
    if not isinstance(entries, list) or not all(isinstance(each, dict) for each in entries):
        raise ConfigError(where, "key", "[[key]] tables")
    if len(entries) > KEYS_MAX:
        raise ConfigError(where, f"{len(entries)} keys", f"<= {KEYS_MAX}")
    keys = tuple(_key(entry, f"{where}: key {i}") for i, entry in enumerate(entries, start=1))
    _check_distinct(keys, where)
    return keys


def _reason(error: Exception) -> str:
    return "nested too deeply" if isinstance(error, RecursionError) else str(error)


def _words(names: Sequence[str] | Mapping[str, object]) -> str:
    return ", ".join(repr(name)[:80] for name in list(names)[:3])


def _check_distinct(keys: Sequence[StoredKey], where: str) -> None:
    """Raise ConfigError for a name or a secret of two keys."""
    names = [key.client.name for key in keys]
    hashes = [key.hash for key in keys]
    for number, key in enumerate(keys, start=1):
        place = f"{where}: key {number}, "
        if names.index(key.client.name) + 1 != number:
            raise ConfigError(f"{place}name", key.client.name, "a name that no other has")
        if hashes.index(key.hash) + 1 != number:
            raise ConfigError(
                f"{place}hash",
                "(not shown)",
                f"another than that of key {hashes.index(key.hash) + 1}",
            )


def _key(entry: Mapping[str, Any], where: str) -> StoredKey:
    unknown = [name for name in entry if name not in _FIELDS]
    if unknown:
        raise ConfigError(where, _words(unknown), f"fields among {', '.join(_FIELDS)}")
    try:
        return StoredKey(
            client=Client(
                name=check_name(entry.get("name")),
                work_class=_work_class(entry.get("class", WorkClass.INTERACTIVE)),
                limits=KeyLimits(**{name: _limit(entry, name) for name in LIMITS}),
            ),
            hash=_hash(entry.get("hash")),
            scopes=_scopes(entry.get("scopes", [Scope.INFERENCE])),
            expires=_expires(entry.get("expires")),
        )
    except ConfigError as error:
        raise ConfigError(f"{where}, {error.field}", error.value, error.expected) from error


def _hash(value: object) -> str:
    return value if isinstance(value, str) else ""  # which StoredKey refuses


def _work_class(value: object) -> WorkClass:
    if isinstance(value, str) and value in tuple(WorkClass):
        return WorkClass(value)
    raise ConfigError("class", repr(value)[:80], " or ".join(WorkClass))


def _limit(entry: Mapping[str, Any], name: str) -> int | None:
    value = entry.get(name)
    if value is None or (isinstance(value, int) and not isinstance(value, bool) and value > 0):
        return value
    raise ConfigError(name, repr(value)[:80], "a whole number of at least 1")


def _scopes(value: object) -> frozenset[Scope]:
    if isinstance(value, list) and all(each in tuple(Scope) for each in value):
        return frozenset(Scope(each) for each in value)
    raise ConfigError("scopes", repr(value)[:80], f"a list of {' and '.join(Scope)}")


def _expires(value: object) -> datetime | None:
    if value is None or isinstance(value, datetime):
        return value
    raise ConfigError(
        "expires", repr(value)[:80], "a time without quotes, such as 2027-01-31T12:00:00Z"
    )
