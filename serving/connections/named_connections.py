"""Connections by the names that the server behind the port knows them by, until they end.

The server says of a call's connection that a key was shown on it, or that it should end. Who
connects to the server some other way has no name here, and is left alone.
"""

import secrets
from typing import Final, Protocol

_PEER: Final = "unix-abstract:"
"""What gRPC's core writes before the name of a client's socket."""


class NamedConnection(Protocol):
    """What has a name."""

    def showed(self, key: str) -> None:
        """The server has taken a call on it with the key of this name."""

    def cut_off(self) -> None:
        """End it at once."""


class NamedConnections:
    """Those of one port. No name is used twice, and nobody else can guess one and take it."""

    def __init__(self) -> None:
        self._prefix = f"ultraserve-{secrets.token_hex(8)}"
        self._made = 0
        self._by_peer: dict[str, NamedConnection] = {}

    def add(self, connection: NamedConnection) -> str:
        """Its name, as a socket is bound to it."""
        self._made += 1
        name = f"{self._prefix}-{self._made}"
        self._by_peer[_PEER + name] = connection
        return name

    def remove(self, name: str) -> None:
        """It is over; again it changes nothing."""
        self._by_peer.pop(_PEER + name, None)

    def showed(self, peer: str, key: str) -> None:
        """A call of `peer`, as gRPC calls it, was taken with the key of this name."""
        if (connection := self._by_peer.get(peer)) is not None:
            connection.showed(key)

    def cut_off(self, peer: str) -> None:
        """End the connection of `peer` at once."""
        if (connection := self._by_peer.get(peer)) is not None:
            connection.cut_off()
