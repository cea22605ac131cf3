"""The control service's two ports: gRPC beside HTTP, keys, sessions, pages, streams."""

import asyncio
import http.client
import logging
import os
import re
import ssl
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
import trustme

from emulator.memory.core_claims import claims_directory
from emulator.specs.fault import Fault, FaultKind
from serving.server.connections.connection_registry import PortLimits
from serving.server.console import console_app, event_stream
from serving.server.control import engine_watch
from serving.server.control.control_address import ControlAddress
from serving.server.control.control_client import ControlTls, ServerUnreachable
from serving.server.control.control_server import ControlServer
from serving.wire import control_call
from tests.e2e.server_process import free_port
from tests.serving.server.console.small_snapshots import Told, parsed
from tests.serving.server.control.http_calls import SERVICE, browser, key_of, looking, with_key
from tests.serving.server.control.small_engine import (
    SmallEngine,
    connected,
    control_server,
    wait_until,
)
from tests.serving.server.gateway.certificates import pem, written

LOSE = {"fault": {"kind": "FAULT_KIND_LOSE_CHIP", "chip": 1}}


@pytest.mark.long
def test_both_ports_serve_at_a_time(address: ControlAddress) -> None:
    def over_grpc(_: int) -> int:
        with connected(address) as client:
            return client.call(control_call.GET_STATE).steps

    def over_http(_: int) -> int:
        with browser(address, headers=with_key(address)) as client:
            return int(client.post(f"{SERVICE}/GetState", json={}).json()["state"]["steps"])

    with ThreadPoolExecutor(8) as pool:
        steps = [*pool.map(over_grpc, range(8)), *pool.map(over_http, range(8))]
    assert steps == [1234] * 16


def test_a_browser_on_the_control_port_is_sent_to_the_console(address: ControlAddress) -> None:
    response = httpx.get(f"http://{address}", trust_env=False, timeout=10)
    assert response.status_code == 505
    assert response.text == (
        "the control port speaks gRPC (HTTP/2) alone: the live page has a port of its own, and "
        "`ultraserve console` prints its address\n"
    )


def test_a_server_without_a_console_has_grpc_alone(engine: SmallEngine) -> None:
    with control_server(engine, console_port=0) as address:
        with connected(address) as client:
            assert client.call(control_call.GET_STATE).steps == 1234
        with pytest.raises(httpx.ConnectError), browser(address) as client:
            client.get("/")


# ---- who may


def test_without_a_key_one_sees_the_page_and_nothing_of_the_machine(
    address: ControlAddress,
) -> None:
    with browser(address) as client:
        assert client.get("/").status_code == 200
        refused = [
            client.get("/stream"),
            client.get("/session"),
            client.post(f"{SERVICE}/GetState", json={}),
            client.post(f"{SERVICE}/InjectFault", json=LOSE),
            client.post("/session", json={"key": "wrong" * 8}),
            client.get("/stream", headers={"Authorization": "Bearer wrong"}),
            client.post(f"{SERVICE}/GetState", json={}, headers={"Authorization": "Bearer wrong"}),
        ]
    for response in refused:
        assert response.status_code == 401, response.request.url
        assert response.json()["code"] == "unauthenticated"
        assert "set-cookie" not in response.headers


def test_a_message_of_somebody_without_a_key_is_not_even_read(address: ControlAddress) -> None:
    with browser(address) as client:
        response = client.post(f"{SERVICE}/Heal", content=b"{nonsense")
    assert response.status_code == 401


def test_a_session_s_cookie_is_not_the_key_and_no_script_reads_it(
    address: ControlAddress,
) -> None:
    with browser(address) as client:
        response = client.post("/session", json={"key": f" {key_of(address)}\n"})
        cookie = response.headers["set-cookie"]
        assert (response.status_code, response.content) == (204, b"")
        assert key_of(address) not in cookie
        assert cookie.startswith(f"ultraserve-{address.port}=")
        parts = {part.strip().lower() for part in cookie.split(";")[1:]}
        assert {"httponly", "samesite=strict", "path=/"} <= parts
        assert "secure" not in parts  # there is no TLS on loopback
        assert client.get("/session").status_code == 204
        assert client.post(f"{SERVICE}/GetState", json={}).status_code == 200
        assert client.delete("/session").status_code == 204
        assert client.get("/session").status_code == 401
        client.cookies.set(f"ultraserve-{address.port}", cookie.split("=")[1].split(";")[0])
        assert client.post(f"{SERVICE}/GetState", json={}).status_code == 401  # also for a copy


CHANGING = [
    *("InjectFault", "Heal", "RecordSteps", "Drain", "Resume", "SetPolicy", "SetPhase", "Publish"),
    *("Rollback", "Sleep", "WakeUp", "PauseGeneration", "ResumeGeneration", "ResetPrefixCache"),
    *("DrainEngine", "UndrainEngine"),
]


def test_a_session_never_changes_anything(engine: SmallEngine, address: ControlAddress) -> None:
    with looking(address) as client:
        for method in CHANGING:
            response = client.post(f"{SERVICE}/{method}", json={})
            assert (response.status_code, response.json()["code"]) == (403, "permission_denied")
        assert engine.lines == []
        response = client.post(f"{SERVICE}/InjectFault", json=LOSE, headers=with_key(address))
        assert response.json()["report"]["accepted"] is True


@pytest.mark.parametrize(
    "body", [b"", b"{}", b"[]", b'{"key": 3}', b'{"key": "x", "more": 1}', b"\xff"]
)
def test_a_session_of_nonsense_is_refused_in_one_line(body: bytes, address: ControlAddress) -> None:
    with browser(address) as client:
        json_kind = {"Content-Type": "application/json"}
        response = client.post("/session", content=body, headers=json_kind)
        assert response.status_code == 400
        assert client.post("/session", data={"key": key_of(address)}).status_code == 415


def test_no_key_is_ever_in_the_log(
    address: ControlAddress, caplog: pytest.LogCaptureFixture
) -> None:
    vllm_log = logging.getLogger("vllm")
    vllm_log.addHandler(caplog.handler)
    with caplog.at_level("DEBUG"), looking(address) as client:
        client.post(f"{SERVICE}/InjectFault", json=LOSE, headers=with_key(address))
    vllm_log.removeHandler(caplog.handler)
    text = "".join(one.getMessage() for one in caplog.records)
    assert "control call InjectFault by the run's key: OK" in text
    assert key_of(address) not in text


# ---- from where


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "127.0.0.1.evil.example", ""])
def test_a_name_that_is_pointed_at_loopback_is_told_nothing(
    host: str, address: ControlAddress
) -> None:
    for method, path in (("GET", "/"), ("GET", "/stream"), ("POST", f"{SERVICE}/GetState")):
        wire = http.client.HTTPConnection(address.host, address.console().port, timeout=10)
        wire.putrequest(method, path, skip_host=True)
        wire.putheader("Host", host)
        wire.putheader("Authorization", f"Bearer {key_of(address)}")
        wire.putheader("Content-Length", "0")
        wire.endheaders()
        assert wire.getresponse().status in (400, 421)
        wire.close()


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://127.0.0.1:3000"},
        {"Origin": "null"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
    ],
)
def test_another_s_page_asks_in_vain_though_the_browser_has_a_session(
    headers: dict[str, str], address: ControlAddress
) -> None:
    with looking(address) as client:
        for response in (
            client.post(f"{SERVICE}/GetState", json={}, headers=headers),
            client.post(
                f"{SERVICE}/InjectFault", json=LOSE, headers={**headers, **with_key(address)}
            ),
            client.get("/stream", headers=headers),
            client.post("/session", json={"key": key_of(address)}, headers=headers),
            client.delete("/session", headers=headers),
            client.options(f"{SERVICE}/GetState", headers=headers),
        ):
            assert response.status_code == 403
            assert "access-control-allow-origin" not in response.headers
        assert client.get("/session").status_code == 204  # it is still there


# ---- the page


def test_every_response_forbids_what_is_not_ours(address: ControlAddress) -> None:
    with browser(address) as client:
        for path in ("/", "/session", "/nope", f"{SERVICE}/GetState"):
            headers = client.get(path).headers
            policy = headers["Content-Security-Policy"]
            assert "default-src 'none'" in policy
            assert "frame-ancestors 'none'" in policy
            assert not re.search(r"unsafe|https?:|\*", policy)
            assert headers["X-Content-Type-Options"] == "nosniff"
            assert headers["Referrer-Policy"] == "no-referrer"
            assert "aiohttp" not in headers["Server"]


def test_a_page_is_sent_packed_and_once(address: ControlAddress) -> None:
    with browser(address) as client:
        plain = client.get("/", headers={"Accept-Encoding": "identity"})
        packed = client.get("/", headers={"Accept-Encoding": "gzip"})
        assert plain.content == packed.content
        assert plain.headers["Content-Type"] == "text/html; charset=utf-8"
        etag = plain.headers["ETag"]
        again = client.get("/", headers={"If-None-Match": f'"other", W/{etag}'})
        assert (again.status_code, again.content) == (304, b"")
        assert client.head("/").headers["Content-Length"]
        assert client.get("/../../key").status_code == 404
        assert client.get("/assets/%2e%2e/%2e%2e/console_app.py").status_code == 404


# ---- the stream


def read_stream(
    client: httpx.Client, *, until: Any, query: str = "interval_s=0.25", **headers: str
) -> list[Told]:
    """What the stream tells until `until` says that it is enough, or the stream ends."""
    text = b""
    with client.stream("GET", f"/stream?{query}", headers=headers) as response:
        assert response.status_code == 200
        assert response.headers["Content-Type"].startswith("text/event-stream")
        for data in response.iter_bytes():
            text += data
            if until(parsed(text)):
                break
    return parsed(text)


@pytest.fixture
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_watch, "_IDLE_S", 0.05)


@pytest.mark.parametrize("encoding", ["identity", "gzip"])
def test_a_fault_is_told_on_the_stream_and_again_to_who_comes_back(
    encoding: str, fast: None, engine: SmallEngine
) -> None:
    with control_server(engine) as address, looking(address) as client:
        client.headers["Accept-Encoding"] = encoding
        with connected(address) as control:
            wait_until(lambda: engine.looks > 0)  # what the first look finds is no event
            control.call(control_call.INJECT_FAULT, fault=Fault(kind=FaultKind.LOSE_CHIP, chip=1))
            control.call(control_call.GET_STATE)  # the engine meets it

        def stages(told: list[Told]) -> list[str]:
            return [each.data["fault"]["stage"] for each in told if each.name == "happened"]

        told = read_stream(client, until=lambda told: "recovered" in stages(told))
        happened = [each for each in told if each.name == "happened"]
        assert happened[0].event_id is not None
        rest = read_stream(
            client,
            until=lambda told: "recovered" in stages(told),
            **{"Last-Event-ID": happened[0].event_id},
        )
        assert [each.data for each in rest if each.name == "happened"] == [
            each.data for each in happened[1:]
        ]


def test_when_the_engine_goes_the_stream_tells_it_and_ends(fast: None, engine: SmallEngine) -> None:
    with control_server(engine) as address, looking(address) as client:
        wait_until(lambda: engine.looks > 0)
        engine.errored = True
        told = read_stream(client, until=lambda _: False)
        names = [each.name for each in told if each.name in ("happened", "gone")]
        assert names == ["happened", "gone"]
        assert told[-1].name == "gone"


def test_the_server_s_end_ends_its_streams_at_once(engine: SmallEngine) -> None:
    made: list[ControlServer] = []
    with ThreadPoolExecutor(1) as pool:
        with control_server(engine, served=made.append) as address:
            client = httpx.Client(
                base_url=f"http://{address.console()}", headers=with_key(address), trust_env=False
            )
            reading = pool.submit(read_stream, client, until=lambda _: False)
            wait_until(lambda: made[0].ports.console.streams == 1)
        reading.result(timeout=5)
        client.close()
    assert made[0].ports.port.connections == 0


def test_a_stream_that_its_reader_leaves_is_over(engine: SmallEngine) -> None:
    made: list[ControlServer] = []
    with control_server(engine, served=made.append) as address, looking(address) as client:
        with client.stream("GET", "/stream?interval_s=60"):
            wait_until(lambda: made[0].ports.console.streams == 1)
        wait_until(lambda: made[0].ports.console.streams == 0)
        wait_until(lambda: made[0].watch.watchers == 0)


def test_there_are_so_many_streams_and_the_next_is_told_so(
    engine: SmallEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(console_app, "STREAMS_MAX", 2)
    with control_server(engine) as address, looking(address) as client:
        with client.stream("GET", "/stream"), client.stream("GET", "/stream"):
            response = client.get("/stream")
        assert response.status_code == 429
        assert response.json()["code"] == "resource_exhausted"


@pytest.mark.long
def test_a_stream_ends_when_its_session_does(
    engine: SmallEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_stream, "_SELDOM_S", 0.25)
    made: list[ControlServer] = []
    with control_server(engine, served=made.append) as address, looking(address) as client:
        cookies = dict(client.cookies)
        with browser(address, cookies=cookies) as other, ThreadPoolExecutor(1) as pool:
            reading = pool.submit(read_stream, other, until=lambda _: False)
            wait_until(lambda: made[0].ports.console.streams == 1)
            client.delete("/session")
            reading.result(timeout=10)


@pytest.mark.parametrize("interval", ["0", "0.1", "61", "nan", "soon", ""])
def test_an_interval_that_is_none_is_named(interval: str, address: ControlAddress) -> None:
    with looking(address) as client:
        response = client.get(f"/stream?interval_s={interval}")
    assert response.status_code == 400
    assert response.json()["message"].startswith("interval_s=")


# ---- TLS


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


def trusting(authority: trustme.CA, *, mine: bool = False) -> ssl.SSLContext:
    context = ssl.create_default_context(cadata=pem(authority).decode())
    if mine:
        authority.issue_cert("client.example").configure_cert(context)
    return context


def far_away(engine: SmallEngine, tls: Any) -> Any:
    return control_server(engine, address=ControlAddress(host="0.0.0.0", port=free_port()), tls=tls)


def test_beyond_loopback_both_speak_tls_and_the_cookie_is_secure(
    engine: SmallEngine, authority: trustme.CA, tmp_path: Path
) -> None:
    (tmp_path / "ca.pem").write_bytes(pem(authority))
    with far_away(engine, written(tmp_path, authority)) as everywhere:
        here = ControlAddress(port=everywhere.port)
        with httpx.Client(
            base_url=f"https://{here.console()}", verify=trusting(authority), trust_env=False
        ) as client:
            response = client.post("/session", json={"key": key_of(here)})
            assert "; Secure" in response.headers["set-cookie"]
            own = {"Origin": f"https://{here.console()}", "Sec-Fetch-Site": "same-origin"}
            state = client.post(f"{SERVICE}/GetState", json={}, headers=own)
            assert state.json()["state"]["steps"] == "1234"
        with connected(here, tls=ControlTls(ca=tmp_path / "ca.pem")) as control:
            assert control.call(control_call.GET_STATE).steps == 1234
        with pytest.raises(httpx.HTTPError), browser(here) as plain:
            plain.get("/")


def test_with_an_authority_of_clients_a_page_too_wants_a_certificate(
    engine: SmallEngine, authority: trustme.CA, tmp_path: Path
) -> None:
    with far_away(engine, written(tmp_path, authority, client_ca=authority)) as everywhere:
        url = f"https://{ControlAddress(port=everywhere.port).console()}"
        with pytest.raises(httpx.HTTPError):
            httpx.get(url, verify=trusting(authority), trust_env=False)
        with httpx.Client(verify=trusting(authority, mine=True), trust_env=False) as client:
            assert client.get(url).status_code == 200


# ---- starts and ends


def test_nothing_is_left_of_a_server_that_has_ended(
    engine: SmallEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))  # no other test's server is in it
    directory = claims_directory(os.environ)
    with control_server(engine) as address:
        (path,) = directory.glob("grpc-*.sock")
        assert directory.stat().st_mode & 0o077 == 0
        silent = asyncio.run(_connected(address))
    assert not path.exists()
    assert not list(directory.glob("grpc-*.sock"))
    silent.close()
    with connected(address, timeout_s=1.0) as client, pytest.raises(ServerUnreachable):
        client.call(control_call.GET_STATE)


async def _connected(address: ControlAddress) -> Any:
    _, writer = await asyncio.open_connection(address.host, address.port)
    return writer.get_extra_info("socket").dup()


@pytest.mark.long
def test_the_port_s_limits_are_the_server_s(engine: SmallEngine) -> None:
    made: list[ControlServer] = []
    limits = PortLimits(head_wait_s=0.2)
    with control_server(engine, served=made.append, port_limits=limits) as address:
        for where in (address, address.console()):
            silent = asyncio.run(_connected(where))
            silent.settimeout(5)
            assert silent.recv(1) == b""
            silent.close()
        assert made[0].ports.port.connections == 0
