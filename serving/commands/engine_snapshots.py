"""Successive snapshots of a server's engine, for commands that outlive it."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Self

import psutil

from serving.commands.control_connection import connect
from serving.server.control.control_address import ControlAddress
from serving.wire import control_call

if TYPE_CHECKING:
    from serving.server.control.control_client import ControlClient
    from serving.telemetry.neuron_tools.engine_snapshot import EngineSnapshot
    from serving.telemetry.neuron_tools.server_processes import ServerProcesses
    from serving.wire.system_description import SystemDescription


class EngineSnapshots:
    """One server, by the arguments of `control_connection`; a context manager that closes it.

    After a failure the next snapshot connects anew, with the key found then, as after a restart.
    """

    def __init__(self, args: argparse.Namespace) -> None:
        self._args = args
        self._client: ControlClient | None = None
        self._description: SystemDescription | None = None
        self._processes: ServerProcesses | None = None

    @property
    def address(self) -> ControlAddress:
        """The server's address; raises ConfigError."""
        return ControlAddress.parse(self._args.address)

    def look(self) -> EngineSnapshot:
        """A snapshot; raises ServerUnreachable, or for good RefusedByServer and ConfigError."""
        from serving.server.control.control_client import ServerUnreachable
        from serving.telemetry.neuron_tools.engine_snapshot import EngineSnapshot

        try:
            if self._client is None:
                self._client = connect(self._args)
            if self._description is None:
                self._description = self._client.call(control_call.DESCRIBE_SYSTEM)
            return EngineSnapshot(
                snapshot=self._client.call(control_call.GET_HARDWARE), description=self._description
            )
        except ServerUnreachable:
            self.close()
            raise

    def look_or_words(self) -> tuple[EngineSnapshot | None, str]:
        """A snapshot, or None and why the server is unreachable."""
        from serving.server.control.control_client import ServerUnreachable

        try:
            return self.look(), ""
        except ServerUnreachable as error:
            return None, str(error)

    def processes(self) -> ServerProcesses | None:
        """The server's processes on this machine; None where not visible."""
        from serving.telemetry.neuron_tools.server_processes import server_processes

        known = self._processes
        if known is None or not psutil.pid_exists(known.root.pid):
            address = self.address
            self._processes = server_processes(address.host, address.port)
        return self._processes

    def close(self) -> None:
        """End the connection; a snapshot opens another."""
        if self._client is not None:
            self._client.close()
        self._client = self._description = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
