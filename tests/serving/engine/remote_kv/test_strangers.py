"""Who has no key, or stands between two engines that have it, gets and changes nothing."""

import asyncio
import contextlib
import socket
import time
from collections.abc import Callable, Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from emulator.errors import ConfigError
from serving.engine.remote_kv.arrivals import KvArrivals
from serving.engine.remote_kv.connection import connected_to
from serving.engine.remote_kv.kv_loop import KvLoop
from serving.engine.remote_kv.limits import UNPROVED_BYTES_MAX, KvLimits
from serving.engine.remote_kv.messages import Part, Pull, There
from serving.engine.remote_kv.offers import KvOffers
from serving.engine.remote_kv.packet_signer import KvSide, PacketSigner
from serving.engine.remote_kv.port import KvPort
from tests.serving.engine.remote_kv.exchanging_engines import (
    KEY,
    SHORT,
    Holder,
    Reader,
    facts,
    random_kv,
    wait_for,
)

GREETING_BYTES = 46
Change = Callable[[bytes, bool], bytes]


@contextlib.contextmanager
def relay(to_port: int, change: Change = lambda data, _: data) -> Iterator[int]:
    """The port of somebody who passes on, changed, what two engines say: `back` to the reader."""

    async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, back: bool) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(1 << 16):
                writer.write(change(data, back))
        writer.close()

    async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        to_reader, to_writer = await asyncio.open_connection("127.0.0.1", to_port)
        await asyncio.gather(copy(reader, to_writer, False), copy(to_reader, writer, True))

    def meet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        loop.start(pass_on(reader, writer))

    async def listen() -> int:
        server = await asyncio.start_server(meet, "127.0.0.1", 0)
        return int(server.sockets[0].getsockname()[1])

    loop = KvLoop()
    try:
        yield loop.run(listen())
    finally:
        loop.close()


def test_a_relay_at_an_address_of_its_own_gets_nothing() -> None:
    seen: list[bytes] = []

    def look(data: bytes, back: bool) -> bytes:
        seen.append(data)
        return data

    with Holder() as holder, Reader() as reader, relay(holder.port, look) as port:
        holder.hold("a", random_kv(5), blocks=5)
        reason = reader.read(port, "a", blocks=5).reason
        assert (
            reason
            == f"the engine at 127.0.0.1:{port}: it says that it is at 127.0.0.1:{holder.port}"
        )
        assert sum(map(len, seen)) < 1_000, "facts alone"
        assert not holder.offers.get("a").is_read  # type: ignore[union-attr]


async def read_through(port: int) -> bytes:
    """The numbers of request a, read by who does not ask where the holder is."""
    connection, _ = await connected_to(
        "127.0.0.1", port, key=KEY, facts=facts("reader"), limits=SHORT
    )
    pull = Pull(
        request_id="a",
        read="a",
        first_block=0,
        blocks=5,
        tokens=1,
        prompt=b"prompt",
        weights="weights",
    )
    await connection.send(pull)
    numbers = b""
    while isinstance(message := await connection.receive(), Part):
        numbers += message.data
    assert isinstance(message, There)
    connection.close()
    return numbers


def test_a_reader_finds_its_way_through_a_wire() -> None:
    kv = random_kv(5)
    with Holder() as holder, relay(holder.port) as port:
        holder.hold("a", kv, blocks=5)
        numbers = holder.loop.run(read_through(port))
    assert numbers == b"".join(each.keys.tobytes() + each.values.tobytes() for each in kv)


@pytest.mark.parametrize(
    ("back", "byte"),
    [
        *((True, byte) for byte in (0, 20, 45, 46, 54, 60, 90, 200, 400, 500, 1_000, 2_000)),
        *((False, byte) for byte in (0, 31, 32, 40, 60, 72, 100, 200, 300)),
    ],
)
def test_what_is_changed_on_the_way_is_refused(back: bool, byte: int) -> None:
    passed = {True: 0, False: 0}

    def flip(data: bytes, side: bool) -> bytes:
        begin, passed[side] = passed[side], passed[side] + len(data)
        if side is not back or not begin <= byte < passed[side]:
            return data
        changed = bytearray(data)
        changed[byte - begin] ^= 1
        return bytes(changed)

    with Holder() as holder, relay(holder.port, flip) as port:
        holder.hold("a", random_kv(5), blocks=5)
        with pytest.raises((OSError, EOFError)):
            holder.loop.run(read_through(port))
        assert passed[back] > byte


def test_what_was_said_once_is_not_heard_again() -> None:
    said: list[bytes] = []

    def record(data: bytes, back: bool) -> bytes:
        if not back:
            said.append(data)
        return data

    with Holder() as holder:
        holder.hold("a", random_kv(5), blocks=5)
        with relay(holder.port, record) as port:
            holder.loop.run(read_through(port))
        wait_for(lambda: not holder.offers.get("a").is_read)  # type: ignore[union-attr]
        with socket.create_connection(("127.0.0.1", holder.port)) as stranger:
            stranger.sendall(b"".join(said))
            assert len(everything(stranger)) == GREETING_BYTES


@given(key=st.binary(min_size=1), nonces=st.tuples(st.binary(), st.binary()), packet=st.binary())
def test_a_signature_is_of_one_place_in_one_direction_of_one_connection(
    key: bytes, nonces: tuple[bytes, bytes], packet: bytes
) -> None:
    def signer(side: KvSide, key: bytes = key, more: bytes = b"") -> PacketSigner:
        return PacketSigner(key, side, holder_nonce=nonces[0] + more, reader_nonce=nonces[1])

    ours = signer(KvSide.READER)
    first, second = ours.sign(packet), ours.sign(packet)
    checks = signer(KvSide.READER)
    assert checks.signs(packet, first)
    assert checks.signs(packet, second)
    others = (
        signer(KvSide.HOLDER),
        signer(KvSide.READER, key=key + b"x"),
        signer(KvSide.READER, more=b"x"),
    )
    for other in others:
        assert not other.signs(packet, first)
    assert not signer(KvSide.READER).signs(packet, second)
    assert not signer(KvSide.READER).signs(packet + b"x", first)


def test_another_key_gets_nothing(caplog: pytest.LogCaptureFixture) -> None:
    with Holder() as holder, Reader(key=b"o" * 40) as reader:
        holder.hold("a", random_kv(5), blocks=5)
        reason = reader.read(holder.port, "a", blocks=5).reason
        assert reason is not None
        assert "has it another one?" in reason
        wait_for(lambda: "a stranger does not know the key" in caplog.text)


@pytest.mark.long
def test_strangers_do_not_keep_engines_out() -> None:
    limits = KvLimits(handshake_wall_s=30.0, unproved_max=4, readers_max=2)
    with contextlib.ExitStack() as all_of, Holder(limits=limits) as holder, Reader() as reader:
        holder.hold("a", random_kv(5), blocks=5)
        strangers = [
            all_of.enter_context(socket.create_connection(("127.0.0.1", holder.port)))
            for _ in range(20)
        ]
        assert reader.read(holder.port, "a", blocks=5).reason is None
        for each in strangers[:10]:
            assert len(everything(each)) <= GREETING_BYTES, "closed for a later one"


@pytest.mark.long
def test_a_stranger_that_says_a_byte_now_and_then_has_one_deadline() -> None:
    with Holder() as holder, socket.create_connection(("127.0.0.1", holder.port)) as stranger:
        began_s = time.monotonic()
        with contextlib.suppress(OSError):
            while time.monotonic() - began_s < 5.0:
                stranger.sendall(b"x")
                time.sleep(0.05)
        assert time.monotonic() - began_s < 3.0


def test_a_stranger_cannot_announce_more_than_a_little(caplog: pytest.LogCaptureFixture) -> None:
    with Holder() as holder:
        with socket.create_connection(("127.0.0.1", holder.port)) as stranger:
            size = UNPROVED_BYTES_MAX + 1
            stranger.sendall(bytes(32) + size.to_bytes(8, "little"))
            assert len(everything(stranger)) == GREETING_BYTES
        wait_for(lambda: f"a packet of {size} bytes was announced" in caplog.text)


def test_engines_beyond_the_limit_are_refused(caplog: pytest.LogCaptureFixture) -> None:
    limits = KvLimits(readers_max=1)
    with Holder(limits=limits) as holder, Reader() as one, Reader() as other:
        for name in ("a", "b"):
            holder.hold(name, random_kv(5), blocks=5)
        assert one.read(holder.port, "a", blocks=5).reason is None
        assert other.read(holder.port, "b", blocks=5).reason is not None
        assert "KV port: a connection is refused: an engine beyond 1" in caplog.text


def test_a_host_that_is_gone_is_found_so_by_the_kernel() -> None:
    with Holder() as holder:
        connection, _ = holder.loop.run(
            connected_to("127.0.0.1", holder.port, key=KEY, facts=facts(), limits=SHORT)
        )
        connected = connection._writer.get_extra_info("socket")
        tcp = {
            name: connected.getsockopt(socket.IPPROTO_TCP, getattr(socket, name))
            for name in ("TCP_KEEPIDLE", "TCP_KEEPINTVL", "TCP_KEEPCNT", "TCP_USER_TIMEOUT")
        }
        assert connected.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        idle_s, between_s, times, unanswered_ms = tcp.values()
        assert idle_s + between_s * times <= 30
        assert unanswered_ms == 30_000
        holder.loop.call(connection.close)


@pytest.mark.parametrize(
    ("host", "field"),
    [
        ("192.0.2.1", "HOST"),
        ("no.such.host.invalid", "HOST"),
        ("a..b", "HOST"),
        ("x" * 300, "HOST"),
        ("127.0.0.1", "PORT"),
    ],
)
def test_an_address_that_cannot_be_listened_on_is_named_by_its_variable(
    host: str, field: str
) -> None:
    with Holder() as holder:
        at = structs.replace(holder.facts, host=host)
        with pytest.raises(ConfigError, match="an address to listen on") as told:
            KvPort(
                holder.loop,
                key=KEY,
                facts=at,
                offers=KvOffers(),
                arrivals=KvArrivals(),
                limits=SHORT,
            )
        assert told.value.field == f"VLLM_NIXL_SIDE_CHANNEL_{field}"


def everything(connected: socket.socket) -> bytes:
    """All that comes until the other end closes."""
    connected.settimeout(5.0)
    data = b""
    with contextlib.suppress(ConnectionResetError):
        while part := connected.recv(1 << 16):
            data += part
    return data
