"""What somebody without a key sends to the console's port: what it costs, what it is told.

Bytes are written to the socket: no client of HTTP would send them.
"""

import contextlib
import json
import logging
import socket
from collections.abc import Iterator

import pytest

from serving.server.connections.connection_registry import PortLimits
from serving.server.console import console_app
from serving.server.console.console_app import SESSION_BYTES_MAX
from serving.server.control.console_snapshots import ConsoleSnapshots
from serving.server.control.control_address import ControlAddress
from serving.server.control.control_server import ControlServer
from tests.serving.server.control.http_calls import SERVICE, browser, key_of, looking
from tests.serving.server.control.small_engine import SmallEngine, control_server, wait_until

JSON_KIND = b"Content-Type: application/json\r\n"


@contextlib.contextmanager
def connected(address: ControlAddress) -> Iterator[socket.socket]:
    with socket.create_connection((address.host, address.console().port), timeout=10) as client:
        yield client


def head(line: bytes, *headers: bytes) -> bytes:
    shown = b"".join(each + b"\r\n" for each in headers)
    return line + b" HTTP/1.1\r\nHost: 127.0.0.1\r\n" + shown


def answer(client: socket.socket) -> tuple[int, dict[str, str]]:
    """The status, and the body, which is JSON."""
    said = b""
    while b"}" not in said:
        more = client.recv(65_536)
        assert more, said
        said += more
    words, _, body = said.partition(b"\r\n\r\n")
    return int(words.split()[1]), json.loads(body)


def test_a_body_that_never_comes_is_waited_for_as_a_head_is(
    engine: SmallEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(console_app, "BODY_WAIT_S", 0.2)
    with control_server(engine) as address, connected(address) as client:
        client.sendall(head(b"POST /session") + JSON_KIND + b"Content-Length: 100\r\n\r\n{")
        status, body = answer(client)
    assert (status, body["code"]) == (408, "deadline_exceeded")
    assert body["message"] == "expected the body within 0.2 s"


def test_a_body_before_the_key_is_short(address: ControlAddress) -> None:
    with browser(address) as client:
        response = client.post("/session", json={"key": "k" * SESSION_BYTES_MAX})
    assert (response.status_code, response.json()["code"]) == (413, "resource_exhausted")
    assert str(SESSION_BYTES_MAX) in response.json()["message"]


@pytest.mark.long
def test_who_has_no_key_keeps_nobody_out_and_who_has_one_is_kept(engine: SmallEngine) -> None:
    waits = head(b"POST /session") + JSON_KIND + b"Content-Length: 100\r\n\r\n{"
    half = head(b"GET /session") + b"\r\nGET /x"
    made: list[ControlServer] = []
    limits = PortLimits(connections=4)
    with (
        control_server(engine, served=made.append, port_limits=limits) as address,
        looking(address) as client,
        client.stream("GET", "/stream?interval_s=60") as stream,
        contextlib.ExitStack() as held,
    ):
        for number in range(12):
            held.enter_context(connected(address)).sendall((waits, half)[number % 2])
        wait_until(lambda: made[0].ports.console_port.connections == 4)
        with browser(address) as other:
            assert other.get("/").status_code == 200
        assert made[0].ports.console.streams == 1
        assert next(stream.iter_bytes())


@pytest.mark.parametrize("value", [b"h\xff", b"h\xc3\xa9", b"h\xed\xa0\x80"])
def test_a_key_of_any_bytes_is_a_wrong_key_and_no_line_of_the_log(
    value: bytes, address: ControlAddress, caplog: pytest.LogCaptureFixture
) -> None:
    shown = b"Authorization: Bearer " + value
    with caplog.at_level(logging.WARNING):
        for line in (b"POST " + SERVICE.encode() + b"/GetState", b"GET /stream", b"GET /session"):
            with connected(address) as client:
                client.sendall(head(line, shown) + JSON_KIND + b"Content-Length: 2\r\n\r\n{}")
                status, body = answer(client)
            assert (status, body["code"]) == (401, "unauthenticated")
    assert not [one for one in caplog.records if one.levelno >= logging.ERROR]


def test_what_is_quoted_of_a_request_may_be_any_bytes(address: ControlAddress) -> None:
    shown = b"Authorization: Bearer " + key_of(address).encode()
    line = b"POST " + SERVICE.encode() + b"/GetState"
    with connected(address) as client:
        timeout = b"Connect-Timeout-Ms: \xff"
        client.sendall(head(line, shown, timeout) + JSON_KIND + b"Content-Length: 2\r\n\r\n{}")
        status, body = answer(client)
    assert (status, body["code"]) == (400, "invalid_argument")
    assert body["message"].startswith("Connect-Timeout-Ms=")


def test_a_body_that_is_no_http_is_told_so_and_no_line_of_the_log(
    address: ControlAddress, caplog: pytest.LogCaptureFixture
) -> None:
    vllm_log = logging.getLogger("vllm")
    vllm_log.addHandler(caplog.handler)
    chunked = head(b"POST /session", b"Transfer-Encoding: chunked") + JSON_KIND
    for nonsense in (chunked + b"\r\nzz\r\n", b"GET / HTTP/9.9 \r\n\r\n"):
        with connected(address) as client:
            client.sendall(nonsense)
            assert b" 400 " in client.recv(65_536)
    vllm_log.removeHandler(caplog.handler)
    assert not [one for one in caplog.records if one.levelno >= logging.ERROR]


def test_a_mistake_of_ours_is_answered_in_json_and_told_in_the_log(
    address: ControlAddress, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(_: object) -> float:
        raise ZeroDivisionError("ours")

    monkeypatch.setattr(console_app, "_interval_s", broken)
    vllm_log = logging.getLogger("vllm")
    vllm_log.addHandler(caplog.handler)
    with looking(address) as client:
        response = client.get("/stream")
    vllm_log.removeHandler(caplog.handler)
    assert (response.status_code, response.json()["code"]) == (500, "internal")
    assert "ours" not in response.text
    assert any(one.exc_info and "GET" in one.getMessage() for one in caplog.records)


@pytest.mark.long
def test_a_mistake_of_ours_in_a_stream_ends_its_connection_and_says_no_second_status(
    address: ControlAddress, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[ConsoleSnapshots] = []

    part = ConsoleSnapshots.part

    async def broken(self: ConsoleSnapshots, name: str, *, max_age_s: float) -> bytes | None:
        if name != "admission":
            return await part(self, name, max_age_s=max_age_s)
        looks.append(self)
        if len(looks) > 1:
            raise KeyError("ours")
        return b"{}"

    monkeypatch.setattr(ConsoleSnapshots, "part", broken)
    vllm_log = logging.getLogger("vllm")
    vllm_log.addHandler(caplog.handler)
    said = b""
    with connected(address) as client:
        key = f"Authorization: Bearer {key_of(address)}".encode()
        client.sendall(head(b"GET /stream?interval_s=0.25", key) + b"\r\n")
        with contextlib.suppress(ConnectionResetError):
            while more := client.recv(65_536):
                said += more
    vllm_log.removeHandler(caplog.handler)
    assert b"event: admission" in said
    assert said.count(b"HTTP/1.1") == 1
    assert not said.endswith(b"0\r\n\r\n")  # a whole response would be an end like any other
    assert any(one.exc_info and "stream" in one.getMessage() for one in caplog.records)
