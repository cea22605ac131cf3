"""What the server behind a port says of its connections: whose they are, and which should end."""

import asyncio

from serving.server.connections.connection_registry import PortLimits
from serving.server.connections.grpc_relay import NamedConnections
from tests.serving.server.connections.echo_ports import PREFACE, Echo, Port, a_port, framed
from tests.serving.server.connections.test_listening_port import ended, run


def test_of_too_many_without_a_key_the_one_that_was_silent_for_longest_makes_room() -> None:
    names = NamedConnections()

    async def test() -> None:
        async with a_port(limits=PortLimits(strangers=2), names=names) as port:
            known = await _in(port)
            names.showed(_peer(port.echoes[0]), "key")
            oldest, other, newest = await _in(port), await _in(port), await _in(port)
            assert await ended(*oldest)
            for reader, writer in (known, other, newest):
                writer.write(framed(b"here"))
                assert (await reader.readexactly(13)).endswith(b"here")
            names.cut_off(_peer(port.echoes[2]))
            assert await ended(*other)
            names.cut_off("unix:")  # who has no name is left alone
            assert port.listening.connections == 2

    run(test())


def test_a_port_that_strangers_fill_still_takes_who_may_have_a_key() -> None:
    names = NamedConnections()
    limits = PortLimits(connections=6, strangers=4, silent=2)

    async def test() -> None:
        async with a_port(limits=limits, names=names) as port:
            known = await _in(port)
            names.showed(_peer(port.echoes[0]), "key")
            for _ in range(4):
                await _in(port)
            silent = [await port.connect() for _ in range(2)]
            for _ in range(8):
                newest = await _in(port)
                names.showed(_peer(port.echoes[-1]), "key")
                if len(names._by_peer) == limits.connections:
                    break
            assert await ended(*silent[0])
            for reader, writer in (known, newest):
                writer.write(framed(b"here"))
                assert (await reader.readexactly(13)).endswith(b"here")
            assert port.listening.connections <= limits.connections

    run(test())


async def _in(port: Port) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await port.connect()
    writer.write(PREFACE)
    await reader.readexactly(3 + len(PREFACE))
    return reader, writer


def _peer(echo: Echo) -> str:
    """As gRPC's core calls it."""
    name: bytes = echo.transport.get_extra_info("peername")
    return "unix-abstract:" + name[1:].decode()
