"""Who gets into the control port, over real channels, and what does not get in."""

import asyncio
import logging
import os
import threading
import time
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
from emulator.specs.fault import Fault, FaultKind
from protos.ultraserve.v1 import control_pb2 as pb
from serving.access.control_key import find_control_key
from serving.access.tls_files import TlsFiles
from serving.server.control import control_guard, control_ports
from serving.server.control.control_address import ControlAddress
from serving.server.control.control_client import (
    ControlClient,
    ControlTls,
    RefusedByServer,
    ServerUnreachable,
)
from serving.server.control.control_guard import GuardLimits, changes_something
from serving.server.control.control_ports import SERVICE
from serving.server.control.control_server import ControlServer
from serving.wire import control_call
from tests.e2e.server_process import free_port
from tests.serving.server.control.raw_call import details_of, failure, stub_at, with_key
from tests.serving.server.control.small_engine import (
    SmallEngine,
    connected,
    control_server,
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
        (("x-api-key", "{key}"), ("x-api-key", "{key}")),
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


@pytest.mark.long
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
        client.call(control_call.GET_STATE)

    assert "--control-key-file" in str(told.value)


@pytest.mark.long
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


def test_a_method_that_the_library_leaves_out_is_no_failure_of_ours(
    address: ControlAddress, caplog: pytest.LogCaptureFixture
) -> None:
    with grpc.insecure_channel(str(address)) as channel, pytest.raises(grpc.RpcError) as raised:
        channel.unary_unary("/grpc.health.v1.Health/List")(b"", timeout=5)

    assert raised.value.code() is grpc.StatusCode.UNIMPLEMENTED
    assert details_of(raised.value)[0].reason == "NOT_SERVED"
    assert "failed" not in caplog.text


@pytest.mark.long
def test_one_call_too_many_is_told_when_to_come_back(
    engine: SmallEngine, address: ControlAddress
) -> None:
    engine.silent = True
    most = control_guard.CALLS_MAX
    with ThreadPoolExecutor(most) as pool, connected(address, timeout_s=2.0) as client:
        calls = [
            pool.submit(client.call, control_call.GET_PLACEMENT, first_layer=layer)
            for layer in range(most)
        ]
        wait_until(lambda: engine.waiting == most)
        told = failure(address, "GetState", pb.GetStateRequest())
        assert all(isinstance(call.exception(), ServerUnreachable) for call in calls)

    info, retry, quota = details_of(told)
    assert told.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert isinstance(info, ErrorInfo)
    assert isinstance(retry, RetryInfo)
    assert isinstance(quota, QuotaFailure)
    engine.silent = False


def test_nobody_without_a_key_takes_the_room_of_who_has_one_nor_a_check_s(
    engine: SmallEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    most = 4
    monkeypatch.setattr(control_guard, "HEALTH_WATCHES_MAX", most)
    with control_server(engine) as address:
        fill_the_room(address, most)


def fill_the_room(address: ControlAddress, most: int) -> None:
    asked = health_pb2.HealthCheckRequest(service="")
    with grpc.insecure_channel(str(address)) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        watches = [stub.Watch(asked, timeout=20) for _ in range(most)]
        for watch in watches:
            next(watch)
        with pytest.raises(grpc.RpcError) as raised:
            next(stub.Watch(asked, timeout=5))
        assert raised.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert stub.Check(asked, timeout=5).status == health_pb2.HealthCheckResponse.SERVING
        with connected(address) as client:
            assert client.call(control_call.GET_STATE).steps == 1234
        for watch in watches:
            watch.cancel()


@pytest.mark.long
@pytest.mark.parametrize("method", ["Check", "Watch"])
def test_who_has_no_key_and_says_nothing_is_not_waited_for(
    method: str, engine: SmallEngine
) -> None:
    made: list[ControlServer] = []
    limits = GuardLimits(health_check_wall_s_max=0.3)
    with (
        control_server(engine, limits=limits, served=made.append) as address,
        grpc.insecure_channel(str(address)) as channel,
    ):
        never = threading.Event()
        silent = channel.stream_stream(f"/grpc.health.v1.Health/{method}")
        call = silent(iter(never.wait, True))  # its headers are sent, and no message
        wait_until(lambda: made[0].ports.guard.inside == 1)
        with pytest.raises(grpc.RpcError) as raised:
            list(call)
        never.set()
        wait_until(lambda: made[0].ports.guard.inside == 0)
    assert raised.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED


def test_who_says_nothing_takes_room_from_checks_alone(
    engine: SmallEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control_guard, "HEALTH_CHECKS_MAX", 2)
    asked = health_pb2.HealthCheckRequest(service="")
    made: list[ControlServer] = []
    never = threading.Event()
    with (
        control_server(engine, served=made.append) as address,
        grpc.insecure_channel(str(address)) as channel,
        connected(address) as client,
    ):
        check = channel.stream_stream("/grpc.health.v1.Health/Check")
        calls = [check(iter(never.wait, True)) for _ in range(2)]
        wait_until(lambda: made[0].ports.guard.inside == 2)
        stub = health_pb2_grpc.HealthStub(channel)
        with pytest.raises(grpc.RpcError) as raised:
            stub.Check(asked, timeout=5)
        assert next(stub.Watch(asked, timeout=5)).status == health_pb2.HealthCheckResponse.SERVING
        assert client.call(control_call.GET_STATE).steps == 1234
        for call in calls:
            call.cancel()
        never.set()
    assert raised.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


@pytest.mark.long
def test_who_watches_health_does_so_for_a_while(engine: SmallEngine) -> None:
    made: list[ControlServer] = []
    limits = GuardLimits(health_watch_wall_s_max=0.3)
    with (
        control_server(engine, limits=limits, served=made.append) as address,
        grpc.insecure_channel(str(address)) as channel,
    ):
        stub = health_pb2_grpc.HealthStub(channel)
        with pytest.raises(grpc.RpcError) as raised:
            list(stub.Watch(health_pb2.HealthCheckRequest(service=""), timeout=10))
        wait_until(lambda: made[0].ports.guard.inside == 0)
    assert raised.value.code() is grpc.StatusCode.UNAVAILABLE
    assert details_of(raised.value)[0].reason == "STREAM_OVER"


@pytest.mark.long
def test_a_connection_has_an_end_though_its_client_stays(
    engine: SmallEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control_ports, "_LIFE_WALL_S", 1.0)
    monkeypatch.setattr(control_ports, "_GRACE_WALL_S", 1.0)
    with control_server(engine) as address, stub_at(address) as stub:
        stub.GetState(pb.GetStateRequest(), timeout=5, metadata=with_key(address))
        ended = []
        for _ in range(2):  # a stream that outlasts life and grace is cut; its client comes back
            request = pb.WatchTelemetryRequest(interval_s=60.0)
            with pytest.raises(grpc.RpcError) as raised:
                list(stub.WatchTelemetry(request, timeout=30, metadata=with_key(address)))
            ended.append(raised.value.code())
        assert ended == [grpc.StatusCode.UNAVAILABLE] * 2


def test_the_core_bounds_all_calls_together(
    engine: SmallEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control_ports, "_RPCS_MAX", 3)
    asked = health_pb2.HealthCheckRequest(service="")
    with control_server(engine) as address, grpc.insecure_channel(str(address)) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        watches = [stub.Watch(asked, timeout=20) for _ in range(3)]
        for watch in watches:
            next(watch)
        with pytest.raises(grpc.RpcError) as raised:
            stub.Check(asked, timeout=5)
        for watch in watches:
            watch.cancel()
    assert raised.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


CHANGES = {
    *("InjectFault", "Heal", "RecordSteps", "Drain", "Resume", "SetPolicy", "SetPhase", "Publish"),
    "SetRankRole",
    *("Rollback", "Sleep", "WakeUp", "PauseGeneration", "ResumeGeneration", "ResetPrefixCache"),
    *("DrainEngine", "UndrainEngine"),
}


def test_no_other_method_changes_something() -> None:
    changing = {name for name in METHODS if changes_something(f"/{SERVICE}/{name}")}

    assert changing == CHANGES


def test_a_call_that_changes_something_is_told_with_whose_key_and_how_it_ended(
    engine: SmallEngine, caplog: pytest.LogCaptureFixture
) -> None:
    lose = Fault(kind=FaultKind.LOSE_CHIP, chip=1)
    vllm_log = logging.getLogger("vllm")
    vllm_log.addHandler(caplog.handler)  # vLLM may have cut it off from the root
    with (
        caplog.at_level("INFO", logger="vllm"),
        control_server(engine, named=lambda _: "the key night-shift") as address,
        connected(address) as client,
    ):
        client.call(control_call.INJECT_FAULT, fault=lose)
        with pytest.raises(RefusedByServer):
            client.call(control_call.INJECT_FAULT, fault=lose)
        client.call(control_call.GET_STATE)
        key = str(find_control_key(address.port, os.environ))
    vllm_log.removeHandler(caplog.handler)

    lines = [one.getMessage() for one in caplog.records]
    told = [line for line in dict.fromkeys(lines) if line.startswith("control call")]
    assert told == [
        "control call InjectFault by the key night-shift: OK",
        "control call InjectFault by the key night-shift: FAILED_PRECONDITION",
    ]
    assert key not in "".join(lines)


def test_a_call_does_not_outlast_its_time(engine: SmallEngine) -> None:
    engine.silent = True
    with control_server(engine, limits=GuardLimits(look_wall_s_max=0.2)) as address:
        told = failure(address, "GetState", pb.GetStateRequest())

    info, _ = details_of(told)
    assert told.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    assert info.reason == "TIME_LIMIT"
    assert engine.waiting == 0


@pytest.mark.long
def test_who_has_waited_in_vain_can_still_say_so_on_a_loop_that_is_late() -> None:
    async def look() -> str:
        async with control_guard._timeout(0.3):
            await asyncio.wait({asyncio.get_running_loop().create_future()}, timeout=0.15)
            return "what is known"

    async def use() -> None:
        looking = asyncio.create_task(look())
        await asyncio.sleep(0)
        time.sleep(0.6)  # the loop stands still
        assert await looking == "what is known"

    asyncio.run(use())


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
        assert client.call(control_call.GET_STATE).steps == 1234


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
        client.call(control_call.GET_STATE)


def test_a_client_shows_its_key_to_nobody_in_plain_text_beyond_loopback(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def plain(*_: Any, **__: Any) -> None:
        raise AssertionError("in plain text")

    monkeypatch.setattr(grpc, "insecure_channel", plain)
    ControlClient(ControlAddress(host="192.0.2.1"), timeout_s=1.0, key="k" * 40).close()
    with pytest.raises(AssertionError, match="in plain text"):
        ControlClient(ControlAddress(), timeout_s=1.0, key="k" * 40)
