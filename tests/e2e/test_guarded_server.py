"""One engine with every port guarded: HTTP and gRPC over TLS, keys, limits, and its end.

The file starts one server; the last test ends it.
"""

import contextlib
import secrets
import signal
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import httpx
import psutil
import pytest
import trustme
from smg_grpc_proto import vllm_engine_pb2 as pb  # type: ignore[import-untyped]
from smg_grpc_proto import vllm_engine_pb2_grpc as pb_grpc  # type: ignore[import-untyped]

from serving.access.control_key import find_control_key
from serving.server.control.control_client import RefusedByServer
from serving.wire import control_call
from tests.e2e.guarded_server import (
    BODY_BYTES_MAX,
    CONTEXT_TOKENS,
    MODEL,
    SEATS,
    GuardedServer,
    asking,
    details,
    guarded_server,
    token_ids,
)
from tests.e2e.server_process import HOST
from tests.e2e.span_collector import SpanCollector

pytestmark = [pytest.mark.engine, pytest.mark.timeout(900)]

ENGINE = "vllm.grpc.engine.VllmEngine"
PROMPT = [151, 9, 34, 27, 500, 3]
WAIT_S = 60.0
LONG_TOKENS = 3_000
"""More than any test waits for: a token takes 10 wall milliseconds and more."""


@pytest.fixture(scope="module")
def spans() -> Iterator[SpanCollector]:
    with SpanCollector() as collector:
        yield collector


@pytest.fixture(scope="module")
def guarded(
    tmp_path_factory: pytest.TempPathFactory, spans: SpanCollector
) -> Iterator[GuardedServer]:
    with guarded_server(tmp_path_factory.mktemp("guarded"), spans) as made:
        yield made


@pytest.fixture(scope="module")
def client(guarded: GuardedServer) -> Iterator[httpx.Client]:
    with guarded.http() as made:
        yield made


def body(tokens: int = 4, **given: Any) -> dict[str, Any]:
    """A completion that gets all its tokens."""
    common = {"model": MODEL, "prompt": PROMPT, "max_tokens": tokens, "ignore_eos": True}
    return common | {"temperature": 0.0, "return_token_ids": True} | given


def comes_true(condition: Callable[[], bool], timeout_s: float = WAIT_S) -> bool:
    end_s = time.monotonic() + timeout_s
    while not condition() and time.monotonic() < end_s:
        time.sleep(0.05)  # polls another process
    return condition()


def code_of(call: Callable[[], Any]) -> grpc.StatusCode:
    with pytest.raises(grpc.RpcError) as raised:
        call()
    return raised.value.code()


def engine_work(guarded: GuardedServer) -> tuple[int, int]:
    """Requests that the engine has, and blocks that hold their KV."""
    with guarded.control() as control:
        (rank,) = control.call(control_call.GET_STATE).ranks
    return rank.requests_running + rank.requests_waiting, rank.kv_blocks_used


@pytest.mark.parametrize("given", [{"temperature": 0.0}, {"temperature": 0.8, "seed": 7}])
def test_both_protocols_give_the_same_tokens(
    guarded: GuardedServer, client: httpx.Client, given: dict[str, Any]
) -> None:
    answer = client.post("/v1/completions", json=body(32, **given)).raise_for_status().json()
    (choice,) = answer["choices"]
    with guarded.engine() as engine:
        ids = token_ids(
            engine.Generate(
                asking("same", PROMPT, max_tokens=32, **given), metadata=guarded.metadata("alice")
            )
        )

    assert len(ids) == 32
    assert choice["token_ids"] == ids


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_a_gateway_s_trace_goes_on_behind_either_protocol(
    guarded: GuardedServer, client: httpx.Client, spans: SpanCollector, protocol: str
) -> None:
    trace_id, gateway_span = secrets.token_hex(16), secrets.token_hex(8)
    header = ("traceparent", f"00-{trace_id}-{gateway_span}-01")
    if protocol == "http":
        client.post("/v1/completions", json=body(4), headers=[header]).raise_for_status()
    else:
        metadata = [*guarded.metadata("alice"), header]
        with guarded.engine() as engine:
            asked = asking("traced", PROMPT, max_tokens=4)
            assert len(token_ids(engine.Generate(asked, metadata=metadata))) == 4

    found = {span.name: span for span in spans.of_trace(trace_id, 4)}
    request = found.pop("llm_request")
    assert request.parent == gateway_span
    assert found.keys() == {"queue", "prefill", "decode"}
    assert {span.parent for span in found.values()} == {request.span.span_id.hex()}
    assert request.attributes["gen_ai.usage.completion_tokens"] == 4
    assert request.attributes["ultraserve.chips"] == [0, 1]
    assert request.attributes["ultraserve.chip_joules"] > 0


@pytest.mark.parametrize(
    ("key", "status", "code"),
    [
        (None, 401, grpc.StatusCode.UNAUTHENTICATED),
        ("a wrong one", 401, grpc.StatusCode.UNAUTHENTICATED),
        ("operator", 403, grpc.StatusCode.PERMISSION_DENIED),
    ],
)
def test_without_a_client_s_key_neither_protocol_admits(
    guarded: GuardedServer, key: str | None, status: int, code: grpc.StatusCode
) -> None:
    with guarded.http(key) as client:
        refused = client.post("/v1/completions", json=body())
    assert refused.status_code == status
    assert set(refused.json()["error"]) == {"message", "type", "param", "code"}
    assert ("www-authenticate" in refused.headers) == (status == 401)

    with guarded.engine() as engine, pytest.raises(grpc.RpcError) as raised:
        list(engine.Generate(asking("r", PROMPT, max_tokens=1), metadata=guarded.metadata(key)))
    assert raised.value.code() is code
    assert details(raised.value)["ErrorInfo"].domain == "ultraserve"


@pytest.mark.parametrize("key", [None, "a wrong one", "alice"])
def test_the_control_service_is_for_operators_alone(
    guarded: GuardedServer, key: str | None
) -> None:
    with guarded.control() as control:
        assert control.call(control_call.GET_STATE).chips
    with guarded.control(key) as control, pytest.raises(RefusedByServer):
        control.call(control_call.GET_STATE)


def test_a_certificate_of_another_authority_and_plain_text_are_not_believed(
    guarded: GuardedServer,
) -> None:
    other = trustme.CA()
    with (
        other.cert_pem.tempfile() as path,
        guarded.http(verify=path) as client,
        pytest.raises(httpx.ConnectError),
    ):
        client.get("/livez")
    with guarded.channel(other) as channel:
        call = pb_grpc.VllmEngineStub(channel).HealthCheck
        request = pb.HealthCheckRequest()
        assert code_of(lambda: call(request, timeout=10)) is grpc.StatusCode.UNAVAILABLE
    with pytest.raises(httpx.TransportError):
        httpx.get(f"http://{HOST}:{guarded.server.port}/livez", trust_env=False)


def test_a_key_s_limit_is_told_before_and_after_it_is_reached(guarded: GuardedServer) -> None:
    with guarded.http("bob") as client:
        first, second, third = (client.post("/v1/completions", json=body(1)) for _ in range(3))

    assert (first.status_code, second.status_code, third.status_code) == (200, 200, 429)
    assert [each.headers["x-ratelimit-remaining-requests"] for each in (first, second)] == [
        "1",
        "0",
    ]
    assert third.headers["x-ratelimit-limit-requests"] == "2"
    assert int(third.headers["retry-after"]) >= 1
    assert third.json()["error"]["code"] == "requests_per_minute"

    with guarded.engine() as engine, pytest.raises(grpc.RpcError) as raised:
        list(engine.Generate(asking("r", PROMPT, max_tokens=1), metadata=guarded.metadata("bob")))
    assert raised.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    found = details(raised.value)
    assert found["ErrorInfo"].reason == "REQUESTS_PER_MINUTE"
    assert found["RetryInfo"].retry_delay.seconds >= 1
    assert len(found["QuotaFailure"].violations) == 1


def test_what_is_too_long_is_refused_before_it_costs_anything(
    guarded: GuardedServer, client: httpx.Client
) -> None:
    much = client.post("/v1/completions", json=body(prompt="x" * BODY_BYTES_MAX))
    assert much.status_code == 413

    long = client.post("/v1/completions", json=body(prompt=[9] * CONTEXT_TOKENS))
    assert long.status_code == 400
    request = asking("long", [9] * CONTEXT_TOKENS, max_tokens=4)
    with guarded.engine() as engine, pytest.raises(grpc.RpcError) as raised:
        list(engine.Generate(request, metadata=guarded.metadata("alice")))
    assert raised.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert details(raised.value)["BadRequest"].field_violations[0].field
    assert engine_work(guarded) == (0, 0)


def test_a_stranger_s_heads_and_bodies_take_no_memory_of_the_running_server(
    guarded: GuardedServer, client: httpx.Client
) -> None:
    context = ssl.create_default_context(cafile=str(guarded.authority_file))
    process = psutil.Process(guarded.server.pid)
    before_bytes = process.memory_info().rss
    body = b"content-length: 16000000\r\n\r\n" + b"x" * 15_999_999
    for head, rest, status in (
        (b"GET /livez HTTP/1.1\r\nhost: a\r\n", b"a: b\r\n" * 3_000_000, b"431"),
        (b"POST /ping HTTP/1.1\r\nhost: a\r\n", body, b"200"),
        (b"OPTIONS /v1/completions HTTP/1.1\r\nhost: a\r\n", body, b"405"),
    ):
        plain = socket.create_connection((HOST, guarded.server.port), timeout=20.0)
        with context.wrap_socket(plain, server_hostname=HOST) as connection:
            with contextlib.suppress(OSError):  # it is closed while it is sent to
                connection.sendall(head + rest)
            with contextlib.suppress(OSError):  # the answer was reset with the connection
                assert connection.recv(2**16).split()[1:2] in ([status], [])
    assert process.memory_info().rss - before_bytes < 100_000_000
    page = client.get("/metrics").text
    assert 'ultraserve_ingress_refused_total{limit="head_fields"} 1.0' in page


def test_a_deadline_frees_the_request_s_kv_at_once(guarded: GuardedServer) -> None:
    with guarded.engine() as engine:
        call = engine.Generate(
            asking("late", PROMPT, max_tokens=LONG_TOKENS),
            metadata=guarded.metadata("alice"),
            timeout=2.0,
        )
        next(call)
        requests, blocks = engine_work(guarded)
        assert (requests, blocks > 0) == (1, True)
        assert code_of(lambda: list(call)) is grpc.StatusCode.DEADLINE_EXCEEDED

    assert comes_true(lambda: engine_work(guarded) == (0, 0), 5.0)


def test_a_client_that_goes_takes_its_request_with_it(guarded: GuardedServer) -> None:
    with guarded.http() as client:
        request = body(LONG_TOKENS, stream=True)
        with client.stream("POST", "/v1/completions", json=request) as response:
            lines = response.iter_lines()  # without a name it would end the response
            next(lines)
            assert engine_work(guarded)[0] == 1
    assert comes_true(lambda: engine_work(guarded) == (0, 0), 5.0)

    with guarded.engine() as engine:
        call = engine.Generate(
            asking("gone", PROMPT, max_tokens=LONG_TOKENS), metadata=guarded.metadata("alice")
        )
        next(call)
        call.cancel()
    assert comes_true(lambda: engine_work(guarded) == (0, 0), 5.0)


def test_probes_need_no_key_and_both_protocols_agree(guarded: GuardedServer) -> None:
    with guarded.http(None) as client:
        assert [client.get(path).status_code for path in ("/startupz", "/livez", "/readyz")] == [
            200,
            200,
            200,
        ]
    assert guarded.health() == "SERVING"
    assert guarded.health(ENGINE) == "SERVING"


@pytest.mark.parametrize(
    "path", ["/sleep", "/collective_rpc", "/reset_prefix_cache", "/pause", "/scale_elastic_ep"]
)
def test_administration_is_not_among_clients_apis(
    guarded: GuardedServer, client: httpx.Client, path: str
) -> None:
    refused = client.post(path, json={})
    assert refused.status_code == 403
    assert refused.json()["error"]["code"] == "not_served_here"


def test_nothing_listens_beyond_this_machine_nor_on_a_port_of_its_own(
    guarded: GuardedServer,
) -> None:
    listening: dict[int, set[tuple[str, int]]] = {}
    for pid, _ in guarded.server.running():
        with contextlib.suppress(psutil.Error):
            listening[pid] = {
                (connection.laddr.ip.removeprefix("::ffff:"), connection.laddr.port)
                for connection in psutil.Process(pid).net_connections("inet")
                if connection.status == psutil.CONN_LISTEN
            }

    server = guarded.server
    console_port = server.control_port + 1
    own = {server.port, server.control_port, console_port, guarded.grpc_port}
    assert listening[server.pid] == {(HOST, port) for port in own}
    assert {address for each in listening.values() for address, _ in each} == {HOST}


def test_no_process_shows_a_key_in_its_command_line_or_environment(guarded: GuardedServer) -> None:
    server = guarded.server
    with guarded.http("flag") as client:
        assert client.post("/v1/completions", json=body()).status_code == 200

    server.look()
    shown = {}
    for (pid, _), described in server.running().items():
        for name in ("cmdline", "environ"):
            with contextlib.suppress(OSError):  # it has ended
                shown[f"{pid} {described}", name] = Path(f"/proc/{pid}/{name}").read_bytes()
    run_key = find_control_key(server.control_port, server.own_environment)
    assert run_key is not None
    secrets = {**guarded.secrets, "the run's own": run_key}
    assert any(b"--api-key" in text for text in shown.values()), "no command line was read"
    assert not [
        (name, place)
        for name, secret in secrets.items()
        for place, text in shown.items()
        if secret.encode() in text
    ]


def test_batch_work_leaves_room_for_interactive_work(
    guarded: GuardedServer, client: httpx.Client
) -> None:
    request = body(LONG_TOKENS, stream=True)
    with contextlib.ExitStack() as held:
        night = held.enter_context(guarded.http("night"))
        begun: list[str] = []

        def ask() -> None:
            with (
                contextlib.suppress(httpx.HTTPError, RuntimeError),
                night.stream("POST", "/v1/completions", json=request) as response,
            ):
                lines = response.iter_lines()  # without a name it would end the response
                begun.append(next(lines))
                done.wait(WAIT_S)

        done = threading.Event()
        jobs = [threading.Thread(target=ask) for _ in range(2 * SEATS)]
        held.callback(lambda: [job.join() for job in jobs])
        held.callback(night.close)
        held.callback(done.set)
        for job in jobs:
            job.start()
        assert comes_true(lambda: engine_work(guarded)[0] > 0)
        assert comes_true(lambda: len(begun) == SEATS - 1)

        answer = client.post("/v1/completions", json=body(4))

        assert answer.status_code == 200
        assert not [line for line in begun if "error" in line]
        assert 0 < engine_work(guarded)[0] < SEATS, "some batch work runs, and the rest waits"
    assert comes_true(lambda: engine_work(guarded) == (0, 0))


def test_sigterm_lets_streams_end_admits_none_and_leaves_nothing(guarded: GuardedServer) -> None:
    server = guarded.server
    run_key = find_control_key(server.control_port, server.own_environment)
    told: dict[str, Any] = {}

    def over_http() -> None:
        with guarded.http() as client:
            lines = body(200, stream=True, stream_options={"include_usage": True})
            with client.stream("POST", "/v1/completions", json=lines) as response:
                for line in response.iter_lines():
                    told["http"] = line or told.get("http")
                    begun[0].set()

    def over_grpc() -> None:
        with guarded.engine() as engine:
            call = engine.Generate(
                asking("last", PROMPT, max_tokens=200), metadata=guarded.metadata("alice")
            )
            first = next(call)
            begun[1].set()
            told["grpc"] = token_ids([first, *call])

    begun = (threading.Event(), threading.Event())
    threads = [threading.Thread(target=target) for target in (over_http, over_grpc)]
    for thread in threads:
        thread.start()
    assert all(event.wait(WAIT_S) for event in begun)

    # As a service manager tells it: to every process of the server.
    server.look()
    for pid, _ in server.running():
        with contextlib.suppress(ProcessLookupError):
            psutil.Process(pid).send_signal(signal.SIGTERM)

    with guarded.http() as client:
        assert comes_true(lambda: client.get("/readyz").status_code == 503)
        refused = client.post("/v1/completions", json=body())
        assert client.get("/livez").status_code == 200
    assert refused.status_code == 503
    assert refused.json()["error"]["code"] == "draining"
    assert int(refused.headers["retry-after"]) >= 1
    assert guarded.health(ENGINE) == "NOT_SERVING"
    with guarded.engine() as engine, pytest.raises(grpc.RpcError) as raised:
        list(
            engine.Generate(asking("new", PROMPT, max_tokens=1), metadata=guarded.metadata("alice"))
        )
    assert raised.value.code() is grpc.StatusCode.UNAVAILABLE
    assert details(raised.value)["ErrorInfo"].reason == "DRAINING"

    for thread in threads:
        thread.join(WAIT_S)
    assert told["http"] == "data: [DONE]"
    assert len(told["grpc"]) == 200
    assert server.wait_end() == 0, server.log()
    assert server.left_over() == [], server.log()
    log = server.log()
    assert '"POST /v1/completions HTTP/1.1" 200' in log, "its log has no requests"
    assert run_key is not None
    secrets = {**guarded.secrets, "the run's own": run_key}
    assert not [name for name, secret in secrets.items() if secret in log]
