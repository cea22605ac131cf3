"""The gRPC server's port: the flag named when it cannot listen there, and its gate's settings."""

import asyncio
import socket
from collections.abc import AsyncIterator

import pytest

from emulator.errors import ConfigError
from serving.errors import PortInUse
from serving.server.connections.grpc_relay import NamedConnections
from tests.serving.server.gateway.grpc import served_grpc
from tests.serving.server.gateway.grpc.served_grpc import served_grpc_server


async def opened(**settings: str) -> None:
    async with served_grpc_server(**settings):
        pass


def test_an_address_that_is_not_this_machine_s_is_no_port_in_use() -> None:
    with pytest.raises(
        ConfigError, match=r"^host=203\.0\.113\.1, port \d+: expected an address to"
    ):
        asyncio.run(opened(grpc_host="203.0.113.1"))


def test_a_port_that_is_taken_is_named_by_its_flag(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]
        monkeypatch.setattr(served_grpc, "free_port", lambda: port)
        with pytest.raises(PortInUse, match=rf"^grpc_port={port}: expected a free port on 127\.0"):
            asyncio.run(opened())


def test_the_gate_is_told_of_a_call_without_a_key_when_it_is_taken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its message may never come."""

    async def run() -> None:
        taken: asyncio.Queue[str] = asyncio.Queue()
        monkeypatch.setattr(NamedConnections, "took", lambda _, peer: taken.put_nowait(peer))

        async def nothing() -> AsyncIterator[bytes]:
            await asyncio.Event().wait()
            yield b""

        async with served_grpc_server() as admission:
            call = admission.channel.stream_unary("/grpc.health.v1.Health/Check")(nothing())
            assert (await asyncio.wait_for(taken.get(), 5.0)).startswith("unix-abstract:")
            assert taken.empty()
            call.cancel()

    asyncio.run(run())
