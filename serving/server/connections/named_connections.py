"""Connections by the names that the server behind the port knows them by, until they end.

The server says of a call's connection that it has the call, that a key was shown on it, or that it
should end. Who connects to the server some other way has no name here, and is left alone.
"""

import secrets
from typing import Final, Protocol

_PEER: Final = "unix-abstract:"
"""What gRPC's core writes before the name of a client's socket."""


class NamedConnection(Protocol):
    """What has a name."""

    @property
    def is_stranger(self) -> bool:
        """Whether nobody has shown a key on it."""

    def took(self) -> None:
        """The server has taken a call on it."""

    def showed(self, key: str) -> None:
        """The server has taken a call on it with the key of this name."""

    def cut_off(self) -> None:
        """End it at once."""


class NamedConnections:
    """Those of one port. No name is used twice, and nobody can guess one that is yet to come."""

    def __init__(self) -> None:
        self._by_peer: dict[str, NamedConnection] = {}

    def add(self, connection: NamedConnection) -> str:
        """Its name, as a socket is bound to it."""
        name = f"ultraserve-{secrets.token_hex(16)}"
        self._by_peer[_PEER + name] = connection
        return name

    def remove(self, name: str) -> None:
        """It is over; again it changes nothing."""
        self._by_peer.pop(_PEER + name, None)

    def took(self, peer: str) -> None:
        """A call of `peer`, as gRPC calls it, was taken."""
        if (connection := self._by_peer.get(peer)) is not None:
            connection.took()

    def showed(self, peer: str, key: str) -> None:
        """A call of `peer` was taken with the key of this name."""
        if (connection := self._by_peer.get(peer)) is not None:
            connection.showed(key)

    def cut_off_stranger(self, peer: str) -> None:
        """End the connection of `peer` at once, unless a key was shown on it."""
        connection = self._by_peer.get(peer)
        if connection is not None and connection.is_stranger:
            connection.cut_off()

    def cut_off(self, peer: str) -> None:
        """End the connection of `peer` at once."""
        if (connection := self._by_peer.get(peer)) is not None:
            connection.cut_off()
