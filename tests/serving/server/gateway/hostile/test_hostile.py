"""Attacks without a key, and with one, on both servers in a process of their own: what they cost.

Each ends with what an honest client notices and with the memory of the process; the bounds are the
project's own (see SECURITY.md), and the process is one for all, so that what stays is seen too.
"""

import contextlib
import gzip
import http.client
import json
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from tests.serving.server.gateway.hostile.http2_client import (
    ACK,
    END_HEADERS,
    END_STREAM,
    Http2Client,
    Kind,
    frame,
    headers,
)
from tests.serving.server.gateway.hostile.target import KEY, MIB, OTHER_KEY, Target, target

pytestmark = pytest.mark.process

STRANGER_MIB = 100.0
KEY_MIB = 200.0
CALLS_MIB = 60.0  # of calls alone: far fewer stay than are begun
CHECK_P50_S = 0.05  # the server's processors: 0.02, and no answer where calls do not wait for turns
CHECKS_MIN = 4  # answered in two seconds, on a host where others work too: alone over a hundred
CHECK = "/grpc.health.v1.Health/Check"
GENERATE = "/vllm.grpc.engine.VllmEngine/Generate"
BEARER = (b"authorization", b"Bearer " + KEY.encode())
BODY = 16 * 2**20
GET = b"GET /livez HTTP/1.1\r\nhost: a\r\n"


@pytest.fixture(scope="module")
def at() -> Iterator[Target]:
    with target() as running:
        for _ in range(3):
            assert answered(running) == 200  # what a first request loads is no attack's
        yield running


def answered(at: Target) -> int:
    """What an honest client with a key of its own is told, within seconds."""
    body = json.dumps({"model": "small-moe", "prompt": [5, 6, 7], "max_tokens": 4})
    connection = http.client.HTTPConnection("127.0.0.1", at.http_port, timeout=5.0)
    with contextlib.closing(connection):
        connection.request(
            "POST",
            "/v1/completions",
            body.ljust(100_000),
            {"authorization": f"Bearer {OTHER_KEY}", "content-type": "application/json"},
        )
        return connection.getresponse().status


def healthy(at: Target) -> bool:
    """Whether an honest probe of gRPC is answered with OK while others attack."""
    with Http2Client(at.grpc_port) as client:
        client.send(frame(Kind.HEADERS, 1, headers(CHECK), END_HEADERS))
        client.send(frame(Kind.DATA, 1, b"\0" * 5, END_STREAM))
        for _ in range(150):
            client.read(0.1)
            if client.frames[Kind.DATA]:
                return True
    return False


@contextlib.contextmanager
def costs(at: Target, mib_max: float) -> Iterator[None]:
    """Assert what a block adds to the process's memory at its peak, and that it is given back: what
    an earlier block left, and the allocator has given back since, may be taken and left again.
    """
    before, peak, is_over = at.rss_mib(), [0.0], threading.Event()

    def watch() -> None:
        while not is_over.wait(0.01):
            peak[0] = max(peak[0], at.rss_mib())

    watching = threading.Thread(target=watch)
    watching.start()
    try:
        yield
    finally:
        is_over.set()
        watching.join()
    grown = peak[0] - before
    assert grown <= mib_max, f"{grown:.0f} MiB more than the {before:.0f} before"
    end_s = time.monotonic() + 60.0
    before = max(before, *at.left_mib)
    while (stays := at.rss_mib() - before) > mib_max / 4 and time.monotonic() < end_s:
        time.sleep(0.25)
    at.left_mib.append(before + stays)
    assert stays <= mib_max / 4, f"{stays:.0f} MiB stay of {grown:.0f}"


def connected(at: Target) -> socket.socket:
    return socket.create_connection(("127.0.0.1", at.http_port), timeout=2.0)


def pushed(connection: socket.socket, data: bytes) -> int:
    """Send as much as is taken within two seconds at a stretch; the bytes."""
    sent, whole = 0, memoryview(data)
    with contextlib.suppress(OSError):
        while sent < len(data):
            sent += connection.send(whole[sent : sent + 2**16])
    return sent


HEADS = {
    "80 MB of lines": GET + b"a: b\r\n" * (80 * 10**6 // 6),
    "80 MB of large headers": GET + (b"a: " + b"b" * 60_000 + b"\r\n") * 1_300,
    "an endless value": GET + b"a: " + b"b" * 80 * 10**6,
    "an endless address": b"GET /" + b"a" * 80 * 10**6,
    "requests in a row": (GET + b"\r\n") * 500_000,
}


HEADS_SLOW = ("80 MB of lines",)


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.slow] if name in HEADS_SLOW else []) for name in HEADS],
)
def test_heads(at: Target, name: str) -> None:
    with costs(at, STRANGER_MIB), contextlib.closing(connected(at)) as connection:
        pushed(connection, HEADS[name])
        assert answered(at) == 200


@pytest.mark.parametrize(
    "path", [b"POST /ping", b"OPTIONS /v1/completions", b"POST /v1/embeddings"]
)
def test_bodies_of_strangers_whose_last_byte_is_withheld(at: Target, path: bytes) -> None:
    head = path + b" HTTP/1.1\r\nhost: a\r\ncontent-length: %d\r\n\r\n" % BODY
    body = b"x" * (BODY - 1)
    with costs(at, STRANGER_MIB), contextlib.ExitStack() as held:
        for _ in range(68):
            connection = held.enter_context(contextlib.closing(connected(at)))
            pushed(connection, head + body)
        assert answered(at) == 200


def test_bodies_of_one_key_whose_last_byte_is_withheld(at: Target) -> None:
    head = b"POST /v1/completions HTTP/1.1\r\nhost: a\r\n%s: %s\r\n" % BEARER
    head += b"content-length: %d\r\n\r\n" % BODY
    with costs(at, KEY_MIB), contextlib.ExitStack() as held:
        for _ in range(30):
            connection = held.enter_context(contextlib.closing(connected(at)))
            pushed(connection, head + b"x" * (BODY - 1))
        assert answered(at) == 200


def test_bodies_of_one_key_that_are_many_times_their_size_when_they_are_read(at: Target) -> None:
    bodies = (
        b'{"model":"small-moe","prompt":' + b"[" + b"[]," * 5_000_000 + b"0]}",
        b'{"model":"small-moe","prompt":' + b"[" * 8_000_000 + b"]" * 8_000_000 + b"}",
        b'{"model":"small-moe","prompt":[' + b'"a",' * 4_000_000 + b'"a"]}',
        b'{"model":"small-moe","prompt":"' + b"a b " * 4_000_000 + b'"}',
    )
    head = b"POST /v1/completions HTTP/1.1\r\nhost: a\r\n%s: %s\r\nconnection: close\r\n" % BEARER
    head += b"content-type: application/json\r\n"
    with costs(at, KEY_MIB), contextlib.ExitStack() as held:
        for body in bodies * 3:
            connection = held.enter_context(contextlib.closing(connected(at)))
            pushed(connection, head + b"content-length: %d\r\n\r\n" % len(body) + body)
        connection.settimeout(30.0)
        assert connection.recv(2**16).startswith((b"HTTP/1.1 4", b"HTTP/1.1 200"))
        assert answered(at) == 200


def test_connections_that_say_half_a_head_and_nothing(at: Target) -> None:
    with costs(at, STRANGER_MIB), contextlib.ExitStack() as held:
        for number in range(1_500):
            connection = held.enter_context(contextlib.closing(connected(at)))
            pushed(connection, b"" if number % 2 else GET + b"a: " + b"b" * 60_000)
        assert answered(at) == 200


@pytest.mark.parametrize(
    ("method", "more", "mib"),
    [
        (CHECK, (), STRANGER_MIB),
        (GENERATE, (), STRANGER_MIB),
        (GENERATE, (BEARER,), KEY_MIB),
        ("/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo", (BEARER,), KEY_MIB),
    ],
)
def test_messages_of_grpc_that_do_not_end(
    at: Target, method: str, more: tuple[tuple[bytes, bytes], ...], mib: float
) -> None:
    with costs(at, mib), Http2Client(at.grpc_port) as client:
        for stream in range(1, 181, 2):
            client.call(stream, method, *more, size=15 * MIB)
        client.push(2.0)
        assert healthy(at)
        assert answered(at) == 200


def test_many_connections_with_messages_that_do_not_end(at: Target) -> None:
    with costs(at, STRANGER_MIB), contextlib.ExitStack() as held:
        clients = [held.enter_context(Http2Client(at.grpc_port)) for _ in range(24)]
        for client in clients:
            for stream in (1, 3, 5):
                client.call(stream, CHECK, size=15 * MIB)
        for client in clients:
            client.push(0.1)
        assert healthy(at)
        assert answered(at) == 200


def test_grpc_announces_its_limits(at: Target) -> None:
    with Http2Client(at.grpc_port) as client:
        client.read(0.3)
        streams, window, header_bytes = (client.settings[name] for name in (3, 4, 6))
    assert streams < 10_000
    assert window <= 2**16
    assert header_bytes <= 2**15


def rapid_reset(client: Http2Client) -> None:
    for begin in range(1, 40_001, 200):
        burst = b"".join(
            frame(Kind.HEADERS, stream, headers(CHECK), END_HEADERS)
            + frame(Kind.RST_STREAM, stream, struct.pack(">I", 8))
            for stream in range(begin, begin + 200, 2)
        )
        client.send(burst)


def settings_flood(client: Http2Client) -> None:
    for _ in range(200):
        client.send(frame(Kind.SETTINGS, payload=struct.pack(">HI", 4, 65_535)) * 1_000)


def ping_flood(client: Http2Client) -> None:
    for _ in range(200):
        client.send(frame(Kind.PING, payload=b"\0" * 8) * 1_000)


def continuation_flood(client: Http2Client) -> None:
    part = b"\x00\x01a\x7f\x81\x7d" + b"b" * 16_000
    client.send(frame(Kind.HEADERS, 1, headers(CHECK)))
    for _ in range(5_000):
        client.send(frame(Kind.CONTINUATION, 1, part))


def empty_data_flood(client: Http2Client) -> None:
    client.send(frame(Kind.HEADERS, 1, headers(CHECK), END_HEADERS))
    for _ in range(200):
        client.send(frame(Kind.DATA, 1) * 1_000)


def metadata_flood(client: Http2Client) -> None:
    more = tuple((b"a%d" % number, b"b" * 700) for number in range(20))
    for stream in range(1, 4_001, 2):
        client.send(frame(Kind.HEADERS, stream, headers(CHECK, *more), END_HEADERS))


def settings_acks(client: Http2Client) -> None:
    client.send(frame(Kind.SETTINGS, flags=ACK) * 100_000)


@pytest.mark.parametrize(
    "attack",
    [
        rapid_reset,
        pytest.param(settings_flood, marks=pytest.mark.slow),
        ping_flood,
        continuation_flood,
        empty_data_flood,
        metadata_flood,
        settings_acks,
    ],
)
def test_frames_of_http2_that_mean_nothing(
    at: Target, attack: Callable[[Http2Client], None]
) -> None:
    with costs(at, STRANGER_MIB), Http2Client(at.grpc_port) as client:
        client.read(0.2)
        attack(client)
        assert healthy(at)
        assert answered(at) == 200


def test_a_message_that_is_small_until_it_is_unpacked(at: Target) -> None:
    packed = gzip.compress(b"\0" * 400 * MIB)
    assert len(packed) < MIB
    with costs(at, STRANGER_MIB), Http2Client(at.grpc_port) as client:
        head = headers(CHECK, (b"grpc-encoding", b"gzip"))
        client.send(frame(Kind.HEADERS, 1, head, END_HEADERS))
        message = b"\1" + struct.pack(">I", len(packed)) + packed
        for begin in range(0, len(message), 16_384):
            client.send(frame(Kind.DATA, 1, message[begin : begin + 16_384]))
            client.read(0.002)
        client.read(0.5)
        assert healthy(at)


def check_latencies(at: Target, port: int, seconds: float, *, pause_s: float = 0.01) -> list[float]:
    """Of checks of health one after the other, on one connection: what the server worked until it
    answered, in processor seconds, which other programs do not lengthen.
    """
    found: list[float] = []
    end_s = time.monotonic() + seconds
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        while time.monotonic() < end_s:
            before_s = at.processor_s()
            stub.Check(health_pb2.HealthCheckRequest(), timeout=10.0)
            found.append(at.processor_s() - before_s)
            time.sleep(pause_s)
    return found


def without_windows(client: Http2Client) -> None:
    """Calls whose answers cannot be sent, and which nobody reads."""
    client.send(frame(Kind.SETTINGS, payload=struct.pack(">HI", 4, 0)))
    for stream in range(1, 2_001, 2):
        client.send(
            frame(Kind.HEADERS, stream, headers(CHECK), END_HEADERS)
            + frame(Kind.DATA, stream, b"\0" * 5, END_STREAM)
        )


@pytest.mark.slow
@pytest.mark.parametrize("port", ["grpc_port", "control_port"])
@pytest.mark.parametrize("attack", [without_windows, rapid_reset])
def test_calls_that_nobody_waits_for_keep_nobody_waiting(
    at: Target, attack: Callable[[Http2Client], None], port: str
) -> None:
    number = getattr(at, port)
    with costs(at, CALLS_MIB), contextlib.ExitStack() as held:
        clients = [held.enter_context(Http2Client(number)) for _ in range(8)]
        attacking = [threading.Thread(target=attack, args=(each,)) for each in clients]
        for each in attacking:
            each.start()
        latencies = sorted(check_latencies(at, number, 2.0))
    for each in attacking:
        each.join()
    assert len(latencies) >= CHECKS_MIN
    assert latencies[len(latencies) // 2] < CHECK_P50_S
