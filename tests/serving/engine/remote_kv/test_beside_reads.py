"""What engines say beside a read is heard at once; what one request asks for harms no other."""

import asyncio
import socket
import threading
import time
from types import SimpleNamespace
from typing import Any

import pytest

from emulator.specs.step import KvSource
from emulator.units import NS_PER_S
from serving.engine.remote_kv.connection import KvConnection, connected_to
from serving.engine.remote_kv.layout import KvLayout
from serving.engine.remote_kv.limits import PACKET_BYTES_MAX, PULL_BYTES_MAX, WAITS_MAX, KvLimits
from serving.engine.remote_kv.messages import EngineFacts, Pull, Waits, bytes_of
from serving.engine.remote_kv.offers import KvOffer, KvOffers
from serving.engine.remote_kv.remote_kv import KvExchangeSettings, RemoteKv
from tests.serving.engine.remote_kv.exchanging_engines import (
    BLOCK_TOKENS,
    KEY,
    LAYOUT,
    Holder,
    Reader,
    facts,
    free_port,
    random_kv,
    wait_for,
)

LONG = KvLimits()
WIDE = KvLayout(layers=8, heads=8, key_width=64, value_width=64, latent=False)
WIDE_BLOCKS = 200
BLOCK_BYTES = LAYOUT.block_bytes(BLOCK_TOKENS)


def connected(holder: Holder, own: EngineFacts | None = None) -> KvConnection:
    """A connection, in the holder's loop, of an engine that says what a test has it say."""
    return holder.loop.run(
        connected_to("127.0.0.1", holder.port, key=KEY, facts=own or facts("reader"), limits=LONG)
    )[0]


def pull_of(name: str, blocks: int) -> Pull:
    return Pull(
        request_id=name,
        read=f"read {name}",
        first_block=0,
        blocks=blocks,
        tokens=1,
        prompt=b"prompt",
        weights="weights",
    )


def test_a_heartbeat_is_heard_while_its_engine_waits_for_numbers() -> None:
    with Holder(limits=LONG) as holder, Reader(limits=LONG) as reader:
        holder.hold("held", random_kv(5), blocks=5)
        held = holder.offers.get("held")
        assert held is not None
        holder.offers.expire(0, NS_PER_S)
        soon = KvOffer(request_id="soon", rank=0, blocks=[0], tokens=1, prompt=b"prompt")
        holder.offers.add(soon)
        read = reader.begin(holder.port, "soon", blocks=1)
        reader.sources.await_room(reader.source(holder.port, "held"), "here")
        reader.sources.beat()
        wait_for(lambda: held.until_ns is None, 3.0)
        assert reader.sources.came(read) is None
        assert reader.read(holder.port, "held", blocks=5).reason is None, "a read is not behind it"


@pytest.mark.long
def test_a_heartbeat_is_heard_while_its_engine_takes_nothing() -> None:
    with Holder(limits=LONG, layout=WIDE) as holder:
        holder.hold("wide", random_kv(WIDE_BLOCKS, layout=WIDE), blocks=WIDE_BLOCKS)
        offer = holder.offers.get("wide")
        assert offer is not None
        connection = connected(holder, facts("reader", layout=WIDE))
        connection._writer.transport.pause_reading()  # type: ignore[attr-defined]
        holder.loop.run(connection.send(pull_of("wide", WIDE_BLOCKS)))
        wait_for(lambda: offer.is_read)
        time.sleep(0.1)  # what the system takes has gone
        holder.offers.expire(0, NS_PER_S)
        assert offer.until_ns == NS_PER_S
        holder.loop.run(connection.send(Waits(request_ids=["wide"])))
        wait_for(lambda: offer.until_ns is None, 3.0)
        holder.loop.call(connection.close)
        wait_for(lambda: not offer.is_read)


PACKET_S = 0.02  # as over a slow link: here 100 MB take no longer than a cancellation may


@pytest.mark.long
def test_a_cancelled_read_is_not_sent_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    sent_bytes = 0
    send = KvConnection.send

    async def counted(self: KvConnection, message: Any, *more: Any) -> None:
        nonlocal sent_bytes
        if size := len(getattr(message, "data", b"")):
            sent_bytes += size
            await asyncio.sleep(PACKET_S)
        await send(self, message, *more)

    monkeypatch.setattr(KvConnection, "send", counted)
    with Holder(limits=LONG, layout=WIDE) as holder, Reader(limits=LONG, layout=WIDE) as reader:
        kv = random_kv(4 * WIDE_BLOCKS, layout=WIDE)
        all_bytes = sum(each.keys.nbytes + each.values.nbytes for each in kv)
        holder.hold("wide", kv, blocks=4 * WIDE_BLOCKS)
        read = reader.begin(holder.port, "wide", blocks=4 * WIDE_BLOCKS)
        wait_for(lambda: sent_bytes > 0)
        reader.sources.end(reader.source(holder.port, "wide"), read, taken_tokens=0)
        wait_for(lambda: len(holder.offers) == 0)
        assert holder.offers.take_ended(0) == ["wide"]
        holder.hold("next", random_kv(1, layout=WIDE), blocks=1)
        assert reader.read(holder.port, "next", blocks=1).reason is None, "the connection lasts"
        assert 0 < sent_bytes < all_bytes / 2


def test_a_read_that_is_cancelled_before_its_numbers_are_there_ends_what_is_held() -> None:
    with Holder(limits=LONG) as holder, Reader(limits=LONG) as reader:
        soon = KvOffer(request_id="soon", rank=0, blocks=[0], tokens=1, prompt=b"prompt")
        holder.offers.add(soon)
        read = reader.begin(holder.port, "soon", blocks=1)
        reader.sources.end(reader.source(holder.port, "soon"), read, taken_tokens=0)
        holder.hold("a", random_kv(5), blocks=5)
        assert reader.read(holder.port, "a", blocks=5).reason is None, "what came before is heard"
        assert len(holder.offers) == 2
        holder.offers.has_read(soon, random_kv(1), weights="weights")
        wait_for(lambda: holder.offers.take_ended(0) == ["soon"])


@pytest.mark.long
def test_a_lease_that_lapses_by_the_wall_takes_no_other_with_it() -> None:
    offers, lease_ns, now_ns = KvOffers(), NS_PER_S // 5, 10
    for name in ("lapses", "renewed"):
        offers.add(KvOffer(request_id=name, rank=0, blocks=[0], tokens=1, prompt=b""))
    for each in offers.unread_blocks():
        offers.has_read(each, (), weights="")
    offers.expire(now_ns, lease_ns)

    def over_ns() -> int | None:
        """As in an idle engine, whose clock stands still."""
        offers.renew(["renewed"])
        assert not offers.expire(now_ns, lease_ns)
        return offers.over_ns()

    lapsed_ns = wait_for(over_ns)
    assert lapsed_ns == now_ns + lease_ns
    (late,) = offers.expire(lapsed_ns, lease_ns)
    assert late.request_id == "lapses"
    # Without heartbeats the other one's ends too, as long after as the wall has it.
    began_s = time.monotonic()
    ends_ns = wait_for(offers.over_ns)
    assert ends_ns > lapsed_ns
    assert time.monotonic() - began_s < 2 * lease_ns / NS_PER_S
    (late,) = offers.expire(ends_ns, lease_ns)
    assert late.request_id == "renewed"


def test_a_name_that_is_too_long_fails_its_own_read_alone() -> None:
    with Holder(limits=LONG) as holder, Reader(limits=LONG) as reader:
        for name in ("a", "b"):
            holder.hold(name, random_kv(5), blocks=5)
        first = reader.begin(holder.port, "a", blocks=5)
        wrong = reader.came(reader.begin(holder.port, "x" * PACKET_BYTES_MAX, blocks=1)).reason
        assert wrong is not None
        assert wrong.endswith(f"at most {PULL_BYTES_MAX} may go")
        assert reader.came(first).reason is None
        reader.sources.await_room(reader.source(holder.port, "x" * PACKET_BYTES_MAX), "here")
        reader.sources.beat()
        assert reader.read(holder.port, "b", blocks=5).reason is None
        assert reader.came(first).reason is None, "no connection has ended"


@pytest.mark.long
def test_as_many_as_wait_are_renewed() -> None:
    longest = Waits(request_ids=["\N{OLD ITALIC LETTER A}" * 256] * WAITS_MAX)
    assert len(bytes_of(longest)) <= PACKET_BYTES_MAX
    with Holder(limits=LONG) as holder, Reader(limits=LONG) as reader:
        for name in ("0" * 40, "z" * 40):
            holder.hold(name, random_kv(5), blocks=5)
        holder.offers.expire(0, NS_PER_S)
        for number in range(22_000):
            reader.sources.await_room(reader.source(holder.port, f"{number:040}"), f"{number}")
        reader.sources.await_room(reader.source(holder.port, "z" * 40), "last")
        reader.sources.beat()
        for name in ("0" * 40, "z" * 40):
            offer = holder.offers.get(name)
            assert offer is not None
            wait_for(lambda each=offer: each.until_ns is None)  # type: ignore[misc]


@pytest.mark.long
def test_heartbeats_are_as_frequent_as_the_shortest_lease_needs() -> None:
    limits = KvLimits()
    with Holder(limits=limits, lease_s=0.3) as holder:
        holder.hold("a", random_kv(5), blocks=5)
        own = facts("reader", port=free_port(), lease_s=30.0)
        settings = KvExchangeSettings(key=KEY, lease_s=30.0)
        reader = RemoteKv(settings, own, KvOffers(), copies_bytes_max=10**6)
        try:
            source = Reader.source(reader, holder.port, "a")  # type: ignore[arg-type]
            reader.await_room(SimpleNamespace(source=source, request_id="here"))  # type: ignore[arg-type]
            end_s = time.monotonic() + 1.2  # four leases
            while time.monotonic() < end_s:
                reader.look(SimpleNamespace(), lambda _: "", 0)  # type: ignore[arg-type]
                assert not holder.offers.expire(time.monotonic_ns(), 3 * NS_PER_S // 10)
                time.sleep(0.01)
        finally:
            reader.close()


async def _say_unsigned(connection: KvConnection) -> None:
    connection._writer.write((5).to_bytes(8, "little") + bytes(32) + b"words")


async def _say_nothing_of_ours(connection: KvConnection) -> None:
    packet = b"\x81\xa4type\xa1\xff"
    head = len(packet).to_bytes(8, "little") + connection._ours.sign(packet)
    connection._writer.write(head + packet)


async def _announce_too_much(connection: KvConnection) -> None:
    connection._writer.write((1 << 30).to_bytes(8, "little"))


@pytest.mark.parametrize(
    ("say", "words"),
    [
        (_say_unsigned, "a packet is not signed with the key"),
        (_say_nothing_of_ours, "a message cannot be decoded: 'utf-8' codec"),
        (_announce_too_much, "a packet of 1073741824 bytes was announced"),
    ],
)
def test_why_an_engine_with_the_key_is_left_is_one_line(
    say: Any, words: str, caplog: pytest.LogCaptureFixture
) -> None:
    with Holder(limits=LONG) as holder:
        holder.loop.run(say(connected(holder)))
        wait_for(lambda: words in caplog.text)
        (line,) = [each for each in caplog.messages if "is left" in each]
        assert line.startswith("KV port: the engine at 127.0.0.1:1 is left: ")
        holder.loop.call(connected(holder).close)
        with Reader(limits=LONG) as reader:
            holder.hold("a", random_kv(5), blocks=5)
            assert reader.read(holder.port, "a", blocks=5).reason is None
        assert len([each for each in caplog.messages if "is left" in each]) == 1


def test_strangers_do_not_fill_the_log(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("serving.engine.remote_kv.port._LINE_EVERY_WALL_S", 0.5)
    with Holder(limits=LONG) as holder:
        for _ in range(50):
            socket.create_connection(("127.0.0.1", holder.port)).close()
        wait_for(lambda: "since the last such line" in caplog.text)
        lines = [each for each in caplog.messages if "a connection is refused" in each]
        assert 1 <= len(lines) <= 3


def test_another_kv_is_refused_at_the_port_too(caplog: pytest.LogCaptureFixture) -> None:
    with Holder(limits=LONG) as holder:
        connection = connected(holder, facts("reader", layout=WIDE))
        with pytest.raises((EOFError, ConnectionResetError)):
            holder.loop.run(connection.receive())
        wait_for(lambda: "its layers is 8, here it is 2" in caplog.text)


def test_no_more_is_booked_than_was_held() -> None:
    with Holder() as holder, Reader() as reader:
        holder.hold("a", random_kv(5), blocks=5)
        read = reader.begin(holder.port, "a", blocks=5)
        reader.came(read)
        reader.sources.end(reader.source(holder.port, "a"), read, taken_tokens=10**15)
        (sent,) = wait_for(holder.offers.take_sent)
        assert sent.tokens == 5


@pytest.mark.long
def test_a_host_that_accepts_nothing_is_said_so() -> None:
    with socket.socket() as full, Reader() as reader:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        waiting = [socket.socket() for _ in range(3)]
        for each in waiting:
            each.setblocking(False)
            each.connect_ex(full.getsockname())
        port = full.getsockname()[1]
        reason = reader.read(port, "a", blocks=1).reason
        for each in waiting:
            each.close()
    words = "it did not accept a connection in 0.5 s"
    assert reason == f"the engine at 127.0.0.1:{port}: {words}"


@pytest.mark.parametrize("taken_tokens", [0, 5])
def test_words_are_sent_before_a_connection_goes_for_another(taken_tokens: int) -> None:
    limits = KvLimits(sources_max=2)
    with Holder(limits=LONG) as holder, Reader(limits=limits) as reader:
        holder.hold("a", random_kv(5), blocks=5)
        source = reader.source(holder.port, "a")
        if taken_tokens:
            read = reader.begin(holder.port, "a", blocks=5)
            reader.came(read)
            reader.sources.end(source, read, taken_tokens=taken_tokens)
        else:
            reader.sources.release(source, "here")
        for port in (1, 2, 3):
            other = KvSource(host="127.0.0.1", port=port, engine_id="z", request_id="q")
            reader.sources.release(other, f"{port}")
        wait_for(lambda: len(holder.offers) == 0, 3.0)


def test_copies_of_what_comes_have_a_bound() -> None:
    with Holder() as holder, Reader() as reader:
        reader.sources.bound(block_bytes=BLOCK_BYTES, bytes_max=8 * BLOCK_BYTES)
        for name in ("a", "b", "c"):
            holder.hold(name, random_kv(5), blocks=5)
        first = reader.begin(holder.port, "a", blocks=5)
        second = reader.begin(holder.port, "b", blocks=5)
        reason = reader.came(second).reason
        assert reason is not None
        assert "copies of what comes would have more" in reason
        assert reader.came(first).reason is None
        reader.sources.end(reader.source(holder.port, "b"), second, taken_tokens=0)
        wait_for(lambda: holder.offers.take_ended(0) == ["b"])
        reader.sources.end(reader.source(holder.port, "a"), first, taken_tokens=5)
        assert reader.read(holder.port, "c", blocks=5).reason is None


def test_names_that_are_found_slowly_keep_no_known_engine_waiting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    at_once: set[str] = set()
    most, find, goes_on = 0, socket.getaddrinfo, threading.Event()

    def slow(host: Any, *more: Any, **named: Any) -> Any:
        nonlocal most
        if not str(host).startswith("slow"):
            return find(host, *more, **named)
        at_once.add(host)
        most = max(most, len(at_once))
        goes_on.wait(10.0)
        at_once.discard(host)
        raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")

    monkeypatch.setattr(socket, "getaddrinfo", slow)
    with Reader(limits=LONG) as reader:
        with Holder(limits=LONG) as holder:
            holder.hold("a", random_kv(5), blocks=5)
            assert reader.read(holder.port, "a", blocks=5).reason is None
        for number in range(40):
            source = KvSource(host=f"slow{number}", port=1, engine_id="z", request_id="q")
            reader.sources.release(source, f"{number}")
        wait_for(lambda: len(at_once) == LONG.dials_max)
        with Holder(limits=LONG, port=holder.port) as again:  # its old connection has ended
            again.hold("b", random_kv(5), blocks=5)
            wait_for(lambda: reader.read(again.port, "b", blocks=5).reason is None, 3.0)
        goes_on.set()
        assert most == LONG.dials_max
