"""Open connections of one port, and which is cut off at a limit. Pure.

Of too many silent ones, the one silent for longest; of too many strangers, the least recently
active. So strangers never keep out a connection with a key.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from emulator.errors import ConfigError

if TYPE_CHECKING:  # which imports this
    from serving.server.connections.client_connection import ClientConnection

HEAD_WAIT_S: Final = 20.0
"""Wall seconds to the end of a first request head, as at the HTTP gateway."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PortLimits:
    """Connections at a time: all, strangers, and silent ones.

    `head_wait_s` bounds the TLS handshake and the first head. Raises ConfigError.
    """

    connections: int = 1_000
    strangers: int = 512
    silent: int = 256
    head_wait_s: float = HEAD_WAIT_S

    def __post_init__(self) -> None:
        for field in ("connections", "strangers", "silent"):
            if getattr(self, field) < 1:
                raise ConfigError(field, getattr(self, field), "at least 1")
        if not 0 < self.head_wait_s < float("inf"):
            raise ConfigError("head_wait_s", self.head_wait_s, "above 0 s")


class ConnectionRegistry:
    """The connections of one port, unfinished handshakes included."""

    def __init__(self, limits: PortLimits) -> None:
        self._limits = limits
        self._silent: dict[ClientConnection, None] = {}  # in the order in which they came
        self._spoken: dict[ClientConnection, None] = {}

    @property
    def open(self) -> tuple[ClientConnection, ...]:
        """All connections."""
        return (*self._silent, *self._spoken)

    @property
    def spoken(self) -> int:
        """Connections that have sent something."""
        return len(self._spoken)

    def admit(self, connection: ClientConnection) -> bool:
        """Add a connection; False when the port is full of those with a key."""
        if len(self._silent) + len(self._spoken) >= self._limits.connections:
            if self._silent:
                self._cut_off_longest_silent()
            elif strangers := self._strangers():
                self._cut_off_one(strangers)
            else:
                return False
        if len(self._silent) >= self._limits.silent:
            self._cut_off_longest_silent()
        self._silent[connection] = None
        return True

    def spoke(self, connection: ClientConnection) -> None:
        """Record its first bytes."""
        self._silent.pop(connection, None)
        self._spoken[connection] = None
        if len(strangers := self._strangers()) > self._limits.strangers:
            self._cut_off_one(strangers)

    def remove(self, connection: ClientConnection) -> None:
        """Remove it; idempotent."""
        self._silent.pop(connection, None)
        self._spoken.pop(connection, None)

    def _cut_off_longest_silent(self) -> None:
        longest = next(iter(self._silent))
        del self._silent[longest]
        longest.abort()

    def _strangers(self) -> list[ClientConnection]:
        return [each for each in self._spoken if each.is_stranger]

    def _cut_off_one(self, strangers: list[ClientConnection]) -> None:
        """Cut off the least recently active, preferably none that waits unread for a turn."""
        longest = min(strangers, key=lambda each: (each.waits_for_turn, each.heard_s))
        del self._spoken[longest]
        longest.abort()
