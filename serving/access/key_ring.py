"""All keys of a server: of flags, of the file, and the control service's own.

A secret is compared with every key in constant time: the response time tells nothing of a guess.

SIGHUP reloads the keys, as for daemons; the loss of the terminal still ends the process: the kernel
signals both alike. A process started to ignore it (`nohup`) goes on.
"""

import asyncio
import contextlib
import hmac
import logging
import os
import signal
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from emulator.errors import ConfigError
from serving.access.key_file import read_key_file
from serving.access.secret import digest_in, digest_of
from serving.access.stored_key import Scope, StoredKey
from serving.policy.admission.work import Client

# Below "vllm", where the API's process has configured handlers; a name of our own prints nothing.
logger = logging.getLogger(f"vllm.{__name__}")

LOOK_EVERY_S: Final = 1.0
"""Least wall seconds between two checks of the file."""

SETTLED_S: Final = 0.2
"""Wall seconds without a change before a file is read: a half-written one can be valid, with keys
missing."""

_ANONYMOUS: Final = Client()


class KeyRing:
    """Keys of one server, for one event loop.

    `key_hashes` are of keys given by flag or environment; `control_secret` is from
    `held_control_key`. Queries read a changed file again, at most every LOOK_EVERY_S; a wrong or
    missing one is logged, and the last keys stay. Raises ConfigError for a wrong file at
    construction.
    """

    def __init__(
        self,
        *,
        key_file: Path | None = None,
        key_hashes: Sequence[str] = (),
        control_secret: str | None = None,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._key_file = key_file
        self._clock, self._now = clock, now
        self._given = tuple(
            StoredKey(client=Client(name=f"(key {number})"), hash=text)
            for number, text in enumerate(key_hashes, start=1)
        )
        self._control = None if control_secret is None else digest_of(control_secret)
        self._keys: tuple[tuple[bytes, StoredKey], ...] = ()
        self._seen: tuple[int, ...] = ()
        self._looked_s = clock()
        keys: tuple[StoredKey, ...] = ()
        if key_file is not None:
            keys, status = read_key_file(key_file)
            self._seen = _identity(status)
        self._hold(keys)

    @property
    def is_open(self) -> bool:
        """Whether no key was configured, so that all are anonymous; an empty file admits none."""
        return self._key_file is None and not self._given

    def key_of(self, secret: str | None) -> StoredKey | None:
        """The key of `secret`; None when unknown or expired."""
        self._look()
        given = digest_of("" if secret is None else secret)
        found: StoredKey | None = None
        for digest, key in self._keys:
            if hmac.compare_digest(digest, given):
                found = key
        if secret is None or found is None or found.is_expired(self._now()):
            return None
        return found

    def name_of(self, secret: str | None) -> str:
        """The key's name for a log."""
        key = self.key_of(secret)
        return "the run's key" if key is None else f"the key {key.client.name}"

    def client_of(self, secret: str | None) -> Client | None:
        """The client with scope inference; `anonymous` in an open ring, None for any other key."""
        if self.is_open:
            return _ANONYMOUS
        key = self.key_of(secret)
        if key is None or Scope.INFERENCE not in key.scopes:
            return None
        return key.client

    def client_named(self, name: str) -> Client | None:
        """The client of a key's name as the ring has it now; None once the key is gone or over."""
        self._look()
        if self.is_open:
            return _ANONYMOUS if name == _ANONYMOUS.name else None
        for _, key in self._keys:
            if key.client.name == name and Scope.INFERENCE in key.scopes:
                return None if key.is_expired(self._now()) else key.client
        return None

    def admits_control(self, secret: str | None) -> bool:
        """Whether `secret`, needed in an open ring too, is this run's own or has scope control."""
        key = self.key_of(secret)
        is_own = self._control is not None and hmac.compare_digest(
            self._control, digest_of("" if secret is None else secret)
        )
        return is_own or (key is not None and Scope.CONTROL in key.scopes)

    def reload(self) -> None:
        """Read the file again; an error is logged, and the old keys stay."""
        if self._key_file is None:
            return
        try:
            keys, status = read_key_file(self._key_file)
        except ConfigError as error:
            logger.warning("keys stay as they were: %s", error)
            return
        self._seen = _identity(status)
        self._hold(keys)
        logger.info("%d keys of %s", len(keys), self._key_file)

    def _look(self) -> None:
        if self._key_file is None or self._clock() - self._looked_s < LOOK_EVERY_S:
            return
        self._looked_s = self._clock()
        seen: tuple[int, ...] = ()
        age_s = SETTLED_S
        with contextlib.suppress(OSError):
            status = self._key_file.stat()
            seen, age_s = _identity(status), self._now().timestamp() - status.st_mtime
        if seen == self._seen:
            return
        if 0 <= age_s < SETTLED_S:
            self._looked_s -= LOOK_EVERY_S - SETTLED_S  # the next look is sooner
        else:
            self._seen = seen  # what is wrong with it is told once
            self.reload()

    def _hold(self, keys: tuple[StoredKey, ...]) -> None:
        self._keys = tuple((digest_in(key.hash), key) for key in (*self._given, *keys))


def _identity(status: os.stat_result) -> tuple[int, ...]:
    return (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)


class KeyReload:
    """Reloads `ring` at SIGHUP; `start` and `stop` from the main thread's loop."""

    def __init__(self, ring: KeyRing) -> None:
        self._ring = ring
        self._ends_with_terminal = False
        self._before: Any = signal.SIG_DFL

    async def start(self) -> None:
        """Listen for the signal."""
        self._before = signal.getsignal(signal.SIGHUP)
        ignored = self._before is signal.SIG_IGN
        self._ends_with_terminal = not ignored and _has_terminal()
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, self._heard)

    async def stop(self) -> None:
        """Restore the earlier handler; idempotent."""
        removed = asyncio.get_running_loop().remove_signal_handler(signal.SIGHUP)
        if removed and self._before is not None:  # None: who listened is not Python's to put back
            signal.signal(signal.SIGHUP, self._before)

    def _heard(self) -> None:
        if self._ends_with_terminal and not _has_terminal():
            os.kill(os.getpid(), signal.SIGTERM)
            return
        self._ring.reload()


def _has_terminal() -> bool:
    try:
        os.close(os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY | os.O_CLOEXEC))
    except OSError:
        return False
    return True
