"""Who gets into the control port, over real channels, and what does not get in."""

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest
import trustme
from google.rpc.error_details_pb2 import ErrorInfo, QuotaFailure, RetryInfo
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from emulator.errors import ConfigError
from protos.ultraserve.v1 import control_pb2 as pb
from serving.access.control_key import find_control_key
from serving.access.tls_files import TlsFiles
from serving.endpoints import control_guard
from serving.endpoints.control_address import ControlAddress
from serving.endpoints.control_client import ControlClient, RefusedByServer, ServerUnreachable
from serving.endpoints.control_guard import ControlGuard, secret_of
from serving.endpoints.control_server import SERVICE, ControlServer
from serving.endpoints.control_tls import ControlTls
from tests.serving.endpoints.raw_call import details_of, failure, stub_at, with_key
from tests.serving.endpoints.small_engine import (
    SmallEngine,
    connected,
    control_server,
    free_port,
    wait_until,
)

METHODS = sorted(pb.DESCRIPTOR.services_by_name["ControlService"].methods_by_name)


@pytest.mark.parametrize(
    "metadata",
    [
        (),
        (("authorization", "Bearer wrong"),),
        (("authorization", "Basic {key}"),),
        (("authorization", "{key}"),),
        (("authorization", "Bearer "),),
        (("authorization", "Bearer {key}"), ("authorization", "Bearer {key}")),
        (("x-api-key", "{key}"),),
    ],
)
def test_nobody_enters_without_the_key_not_even_on_loopback(
    metadata: tuple[tuple[str, str], ...], engine: SmallEngine, address: ControlAddress
) -> None:
    key = find_control_key(address.port, os.environ)
    shown = tuple((name, value.format(key=key)) for name, value in metadata)
    with stub_at(address) as stub, pytest.raises(grpc.RpcError) as raised:
        stub.GetState(pb.GetStateRequest(), timeout=10, metadata=shown)

    (info,) = details_of(raised.value)
    assert raised.value.code() is grpc.StatusCode.UNAUTHENTICATED
    assert (info.reason, info.domain) == ("UNAUTHENTICATED", "ultraserve")
    assert str(key) not in str(raised.value)
    assert engine.lines == []


@pytest.mark.parametrize("method", METHODS)
def test_every_method_wants_the_key(method: str, address: ControlAddress) -> None:
    request = getattr(pb, f"{method}Request")()
    with stub_at(address) as stub, pytest.raises(grpc.RpcError) as raised:
        list(getattr(stub, method)(request, timeout=10))
    assert raised.value.code() is grpc.StatusCode.UNAUTHENTICATED


def test_the_key_is_the_run_s_own_and_goes_with_it(engine: SmallEngine) -> None:
    with control_server(engine) as address:
        first = find_control_key(address.port, os.environ)
        assert first is not None
        assert len(first) >= 43  # 256 bits in base64
    assert find_control_key(address.port, os.environ) is None
    with control_server(engine, address=address):
        assert find_control_key(address.port, os.environ) not in (None, first)


def test_a_command_without_the_key_is_told_where_it_is(address: ControlAddress) -> None:
    with ControlClient(address, timeout_s=5.0) as client, pytest.raises(RefusedByServer) as told:
        client.state()

    assert "--control-key-file" in str(told.value)


def test_health_needs_no_key_and_ends_with_the_engine(
    engine: SmallEngine, address: ControlAddress
) -> None:
    serving = health_pb2.HealthCheckResponse.SERVING
    with grpc.insecure_channel(str(address)) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        for name in ("", SERVICE):
            asked = health_pb2.HealthCheckRequest(service=name)
            assert stub.Check(asked, timeout=5).status == serving
        watch = stub.Watch(health_pb2.HealthCheckRequest(service=SERVICE), timeout=10)
        assert next(watch).status == serving
        engine.errored = True
        assert next(watch).status == health_pb2.HealthCheckResponse.NOT_SERVING
        with pytest.raises(grpc.RpcError) as raised:
            stub.Check(health_pb2.HealthCheckRequest(service="another"), timeout=5)
    assert raised.value.code() is grpc.StatusCode.NOT_FOUND


def test_reflection_shows_the_contract_to_whoever_has_the_key(address: ControlAddress) -> None:
    asked = reflection_pb2.ServerReflectionRequest(list_services="")
    with grpc.insecure_channel(str(address)) as channel:
        ask = reflection_pb2_grpc.ServerReflectionStub(channel).ServerReflectionInfo
        (told,) = ask(iter([asked]), timeout=5, metadata=with_key(address))
        names = [service.name for service in told.list_services_response.service]
        with pytest.raises(grpc.RpcError) as raised:
            next(ask(iter([asked]), timeout=5))

    assert SERVICE in names
    assert raised.value.code() is grpc.StatusCode.UNAUTHENTICATED


def raw_failure(address: ControlAddress, path: str, raw: bytes) -> Any:
    with grpc.insecure_channel(str(address)) as channel:
        call = channel.unary_unary(path, None, None)
        with pytest.raises(grpc.RpcError) as raised:
            call(raw, timeout=5, metadata=with_key(address))
    return raised.value


def test_bytes_that_are_no_message_are_an_invalid_argument(address: ControlAddress) -> None:
    told = raw_failure(address, f"/{SERVICE}/Heal", b"\xff\xff\xff")
    (info,) = details_of(told)

    assert told.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert info.reason == "UNREADABLE_MESSAGE"


def test_a_message_that_is_too_long_is_refused_with_its_size(
    engine: SmallEngine, address: ControlAddress
) -> None:
    note = "x" * control_guard.MESSAGE_BYTES_MAX
    told = failure(address, "Publish", pb.PublishRequest(note=note))
    info, quota = details_of(told)

    assert told.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert info.reason == "MESSAGE_BYTES"
    assert isinstance(quota, QuotaFailure)
    assert engine.lines == []


def test_a_method_that_there_is_not_is_unimplemented(address: ControlAddress) -> None:
    told = raw_failure(address, f"/{SERVICE}/Explode", b"")
    (info,) = details_of(told)

    assert told.code() is grpc.StatusCode.UNIMPLEMENTED
    assert info.reason == "NOT_SERVED"


def test_one_call_too_many_is_told_when_to_come_back(
    engine: SmallEngine, address: ControlAddress
) -> None:
    engine.silent = True
    most = control_guard.CALLS_MAX
    with ThreadPoolExecutor(most) as pool, connected(address, timeout_s=2.0) as client:
        calls = [pool.submit(client.state) for _ in range(most)]
        wait_until(lambda: engine.waiting == most)
        told = failure(address, "GetState", pb.GetStateRequest())
        assert all(isinstance(call.exception(), ServerUnreachable) for call in calls)

    info, retry, quota = details_of(told)
    assert told.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert isinstance(info, ErrorInfo)
    assert isinstance(retry, RetryInfo)
    assert isinstance(quota, QuotaFailure)
    engine.silent = False


def test_nobody_without_a_key_takes_the_room_of_who_has_one(address: ControlAddress) -> None:
    asked = health_pb2.HealthCheckRequest(service="")
    with grpc.insecure_channel(str(address)) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        watches = [stub.Watch(asked, timeout=20) for _ in range(control_guard.HEALTH_CALLS_MAX)]
        for watch in watches:
            next(watch)
        with pytest.raises(grpc.RpcError) as raised:
            next(stub.Watch(asked, timeout=5))
        assert raised.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        with connected(address) as client:
            assert client.state().steps == 1234
        for watch in watches:
            watch.cancel()


def test_a_call_does_not_outlast_its_time(
    engine: SmallEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ControlGuard.__init__, "__kwdefaults__", {"call_wall_s_max": 0.2})
    engine.silent = True
    with control_server(engine) as address:
        told = failure(address, "GetState", pb.GetStateRequest())

    info, _ = details_of(told)
    assert told.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    assert info.reason == "TIME_LIMIT"
    assert engine.waiting == 0


@pytest.mark.parametrize(
    ("metadata", "secret"),
    [
        ((("authorization", "Bearer abc"),), "abc"),
        ((("authorization", "bearer  abc "),), "abc"),
        ((("other", "Bearer abc"), ("authorization", "Bearer d")), "d"),
        ((("authorization", b"Bearer abc"),), None),
    ],
)
def test_a_key_is_read_as_http_has_it(metadata: Any, secret: str | None) -> None:
    assert secret_of(metadata) == secret


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
def tls(authority: trustme.CA, tmp_path: Path) -> TlsFiles:
    issued = authority.issue_cert("127.0.0.2", "localhost", "127.0.0.1")
    certificate, key = tmp_path / "server.pem", tmp_path / "server.key"
    certificate.write_bytes(b"".join(blob.bytes() for blob in issued.cert_chain_pems))
    key.write_bytes(issued.private_key_pem.bytes())
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    return TlsFiles(certificate=certificate, key=key, client_ca=tmp_path / "ca.pem")


@pytest.fixture
def mine(authority: trustme.CA, tmp_path: Path) -> ControlTls:
    issued = authority.issue_cert("client.example")
    certificate, key = tmp_path / "client.pem", tmp_path / "client.key"
    certificate.write_bytes(b"".join(blob.bytes() for blob in issued.cert_chain_pems))
    key.write_bytes(issued.private_key_pem.bytes())
    return ControlTls(ca=tmp_path / "ca.pem", certificate=certificate, key=key)


def test_beyond_loopback_there_is_no_service_without_tls(engine: SmallEngine) -> None:
    with pytest.raises(
        ConfigError, match=r"^control_host=0\.0\.0\.0: expected a loopback host, or"
    ):
        ControlServer(engine, ControlAddress(host="0.0.0.0"), admits=lambda _: True)


@pytest.fixture
def far(engine: SmallEngine, tls: TlsFiles) -> Iterator[ControlAddress]:
    """A server on all addresses of this machine, as a client on another sees it."""
    everywhere = ControlAddress(host="0.0.0.0", port=free_port())
    with control_server(engine, address=everywhere, tls=tls):
        yield ControlAddress(port=everywhere.port)


def test_beyond_loopback_both_sides_show_a_certificate(
    far: ControlAddress, mine: ControlTls
) -> None:
    with connected(far, tls=mine) as client:
        assert client.state().steps == 1234


@pytest.mark.parametrize("without", ["a certificate of mine", "the authority", "tls"])
def test_beyond_loopback_nobody_enters_without_certificates(
    without: str, far: ControlAddress, mine: ControlTls
) -> None:
    given = {
        "a certificate of mine": ControlTls(ca=mine.ca),
        "the authority": ControlTls(certificate=mine.certificate, key=mine.key),
        "tls": None,
    }
    with (
        connected(far, timeout_s=5.0, tls=given[without]) as client,
        pytest.raises(ServerUnreachable),
    ):
        client.state()


def test_a_client_shows_its_key_to_nobody_in_plain_text_beyond_loopback(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def plain(*_: Any, **__: Any) -> None:
        raise AssertionError("in plain text")

    monkeypatch.setattr(grpc, "insecure_channel", plain)
    ControlClient(ControlAddress(host="192.0.2.1"), timeout_s=1.0, key="k" * 40).close()
    with pytest.raises(AssertionError, match="in plain text"):
        ControlClient(ControlAddress(), timeout_s=1.0, key="k" * 40)
