"""Open connections of one port, and which of them gives way when there are too many. Pure.

A port whose silent connections are too many cuts off the one that is silent for longest; a port
with too many connections of strangers cuts off the stranger that said nothing for longest. So
connections without a key keep none with a key out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from emulator.errors import ConfigError

if TYPE_CHECKING:  # which imports this
    from serving.server.connections.client_connection import ClientConnection

HEAD_WAIT_S: Final = 20.0
"""Wall seconds from a connection to the end of its first request's head, as at the HTTP gateway."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PortLimits:
    """Connections at a time: of all kinds, of strangers, and of those that have yet to speak.

    `head_wait_s` bounds the TLS handshake, and the time to the end of the first head.
    Raises ConfigError for fewer than one.
    """

    connections: int = 1_000
    strangers: int = 512
    silent: int = 256
    head_wait_s: float = HEAD_WAIT_S

    def __post_init__(self) -> None:
        for field in ("connections", "strangers", "silent"):
            if getattr(self, field) < 1:
                raise ConfigError(field=field, value=getattr(self, field), expected="at least 1")
        if not 0 < self.head_wait_s < float("inf"):
            raise ConfigError(field="head_wait_s", value=self.head_wait_s, expected="above 0 s")


class ConnectionRegistry:
    """The connections of one port, from their acceptance on: a handshake is one, too."""

    def __init__(self, limits: PortLimits) -> None:
        self._limits = limits
        self._silent: dict[ClientConnection, None] = {}  # in the order in which they came
        self._spoken: dict[ClientConnection, None] = {}

    @property
    def open(self) -> tuple[ClientConnection, ...]:
        """All of them."""
        return (*self._silent, *self._spoken)

    @property
    def spoken(self) -> int:
        """How many have said something."""
        return len(self._spoken)

    def admit(self, connection: ClientConnection) -> bool:
        """Add one that has said nothing yet; False where the port is full of those with a key."""
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
        """It has said what it speaks."""
        self._silent.pop(connection, None)
        self._spoken[connection] = None
        if len(strangers := self._strangers()) > self._limits.strangers:
            self._cut_off_one(strangers)

    def remove(self, connection: ClientConnection) -> None:
        """It is over; idempotent."""
        self._silent.pop(connection, None)
        self._spoken.pop(connection, None)

    def _cut_off_longest_silent(self) -> None:
        longest = next(iter(self._silent))
        del self._silent[longest]
        longest.abort()

    def _strangers(self) -> list[ClientConnection]:
        return [each for each in self._spoken if each.is_stranger]

    def _cut_off_one(self, strangers: list[ClientConnection]) -> None:
        """The one silent for longest; those that wait for a turn, and are not read, come last."""
        longest = min(strangers, key=lambda each: (each.waits_for_turn, each.heard_s))
        del self._spoken[longest]
        longest.abort()
