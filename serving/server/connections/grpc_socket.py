"""The way from a port to the gRPC server behind it: a connection for each client's, with a gate."""

import asyncio
from pathlib import Path

from serving.server.connections.gated_side import GatedSide, WatchedSide
from serving.server.connections.named_connections import NamedConnections
from serving.server.connections.private_socket import connected
from serving.server.connections.splice import spliced
from serving.server.connections.stream_turns import PortTurns


class GrpcSocket:
    """The server that listens at `path`, which says in `names` what it learns of who calls.

    Made in the loop that it connects in.
    """

    def __init__(self, path: Path, names: NamedConnections | None = None) -> None:
        self._path = path
        self._names = names or NamedConnections()
        self._turns = PortTurns(asyncio.get_running_loop())

    async def connect(self, client: asyncio.Transport) -> GatedSide:
        """The client's side of a new connection to the server; raises OSError."""
        loop = asyncio.get_running_loop()
        here = GatedSide(self._turns, loop)
        beyond = WatchedSide(here.gate)
        spliced(here, beyond)
        here.connection_made(client)  # before the server can say anything
        name = self._names.add(here)
        here.on_lost = lambda: self._names.remove(name)
        try:
            await loop.create_unix_connection(lambda: beyond, sock=connected(self._path, name))
        except OSError:
            self._names.remove(name)
            raise
        return here
