"""Streams of telemetry and events, over real channels: what a watcher is told, and forgotten."""

import logging
import threading
import time
from collections.abc import Iterator
from itertools import islice
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from emulator.specs.fault import Fault, FaultKind
from protos.ultraserve.v1 import control_pb2 as pb
from protos.ultraserve.v1 import control_pb2_grpc as pb_grpc
from serving.server.control import control_guard, engine_watch
from serving.server.control.control_address import ControlAddress
from serving.server.control.control_client import ControlClient, RefusedByServer, ServerUnreachable
from serving.server.control.control_guard import GuardLimits
from serving.server.control.control_ports import SERVICE
from serving.server.control.control_server import ControlServer
from serving.wire import control_call
from serving.wire.telemetry import EventKind
from tests.serving.server.control.raw_call import details_of, stub_at, with_key
from tests.serving.server.control.small_engine import (
    SmallEngine,
    connected,
    control_server,
    wait_until,
)

LOSE = Fault(kind=FaultKind.LOSE_CHIP, chip=1)
HANG = Fault(kind=FaultKind.HANG_CHIP, chip=0)


@pytest.fixture
def server(engine: SmallEngine, monkeypatch: pytest.MonkeyPatch) -> Iterator[ControlServer]:
    """The server behind `address`, looking fast while nobody watches."""
    monkeypatch.setattr(engine_watch, "_IDLE_S", 0.05)
    made: list[ControlServer] = []
    with control_server(engine, served=made.append) as address:
        made[0].here = address  # type: ignore[attr-defined]
        yield made[0]


@pytest.fixture
def address(server: ControlServer) -> ControlAddress:
    where: ControlAddress = server.here  # type: ignore[attr-defined]
    return where


@pytest.mark.long
def test_telemetry_comes_again_and_again(client: ControlClient) -> None:
    looks = list(islice(client.telemetry(0.1), 4))

    steps = [look.steps for look, _ in looks]
    assert steps == sorted(set(steps))
    assert [skipped for _, skipped in looks] == [0] * 4
    assert looks[0][0].requests_running == 3


@pytest.mark.long
def test_a_look_is_as_long_after_the_last_one_as_was_asked(client: ControlClient) -> None:
    stream = client.telemetry(0.2)
    next(stream)
    begun_s = time.monotonic()
    list(islice(stream, 3))

    assert 0.4 < time.monotonic() - begun_s < 2.0  # from due time to due time; a host may be late


@pytest.mark.long
def test_an_engine_that_is_slow_leaves_looks_out_and_says_how_many(
    engine: SmallEngine, server: ControlServer, client: ControlClient
) -> None:
    stream = client.telemetry(0.1)
    next(stream)
    engine.silent = True
    heard: list[Any] = []
    reader = threading.Thread(target=lambda: heard.extend(islice(stream, 3)))
    reader.start()
    time.sleep(0.65)  # six looks are due meanwhile
    engine.silent = False
    reader.join(5)

    assert 3 <= sum(skipped for _, skipped in heard) <= 8


@pytest.mark.parametrize("interval_s", [0.0, 0.05, -1.0, 61.0, float("nan"), float("inf")])
def test_an_interval_that_is_none_is_refused(interval_s: float, client: ControlClient) -> None:
    with pytest.raises(RefusedByServer, match=r"expected 0\.1 to 60 seconds"):
        next(client.telemetry(interval_s))


def test_a_fault_is_an_event_at_each_stage(engine: SmallEngine, client: ControlClient) -> None:
    stream = client.events(after=0)
    client.call(control_call.INJECT_FAULT, fault=LOSE)
    first, lost = next(stream)
    client.call(control_call.GET_STATE)  # the small engine recovers when its state was asked for
    second, _ = next(stream)

    assert (first.number, first.kind, lost) == (1, EventKind.FAULT, 0)
    assert first.fault is not None
    assert first.fault.fault == LOSE
    assert "injected" in first.words
    assert second.number == 2
    assert second.fault == engine.state.faults[0]
    assert abs(first.unix_s - time.time()) < 60


def test_events_can_begin_after_any_that_the_server_remembers(
    client: ControlClient, server: ControlServer
) -> None:
    client.call(control_call.INJECT_FAULT, fault=LOSE)
    client.call(control_call.INJECT_FAULT, fault=HANG)
    wait_until(lambda: server.watch.last_number == 2)

    assert [event.number for event, _ in islice(client.events(after=0), 2)] == [1, 2]
    assert [event.number for event, _ in islice(client.events(after=1), 1)] == [2]
    with pytest.raises(RefusedByServer, match=r"^after=3: expected 0 to 2"):
        next(client.events(after=3))
    with pytest.raises(RefusedByServer, match=r"^after=-1: expected 0 to 2"):
        next(client.events(after=-1))


def test_who_comes_late_is_told_how_many_events_are_forgotten(
    engine: SmallEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_watch, "EVENTS_KEPT", 3)
    monkeypatch.setattr(engine_watch, "_IDLE_S", 0.05)
    made: list[ControlServer] = []
    with (
        control_server(engine, served=made.append) as address,
        connected(address) as client,
    ):
        for _ in range(5):
            client.call(control_call.INJECT_FAULT, fault=HANG)
        wait_until(lambda: made[0].watch.last_number == 5)
        told = list(islice(client.events(after=0), 3))

    assert [(event.number, lost) for event, lost in told] == [(3, 2), (4, 0), (5, 0)]


def test_a_watcher_that_goes_is_forgotten(
    server: ControlServer, address: ControlAddress, client: ControlClient
) -> None:
    streams = [client.telemetry(0.1) for _ in range(3)]
    for stream in streams:
        next(stream)
    assert server.watch.watchers == 3
    streams[0].close()
    wait_until(lambda: server.watch.watchers == 2)
    with connected(address) as other:
        next(other.telemetry(0.1))
    for stream in streams:
        stream.close()
    wait_until(lambda: server.watch.watchers == 0 and server.ports.guard.inside == 0)


@pytest.mark.long
def test_a_reader_that_does_not_read_costs_nothing_and_may_go(
    server: ControlServer, address: ControlAddress
) -> None:
    with stub_at(address) as stub:
        call = stub.WatchTelemetry(
            pb.WatchTelemetryRequest(interval_s=0.1), metadata=with_key(address)
        )
        wait_until(lambda: server.watch.watchers == 1)
        time.sleep(0.5)  # nothing is read
        call.cancel()
        wait_until(lambda: server.watch.watchers == 0 and server.ports.guard.inside == 0)


@pytest.mark.long
def test_one_poller_asks_for_all_watchers(
    engine: SmallEngine, server: ControlServer, client: ControlClient
) -> None:
    streams = [client.telemetry(0.1) for _ in range(8)]
    for stream in streams:
        next(stream)
    before, begun_s = engine.looks, time.monotonic()
    for stream in streams:
        list(islice(stream, 4))
    asked, passed_s = engine.looks - before, time.monotonic() - begun_s

    assert asked <= passed_s / 0.05 + 2  # a look is new enough for half an interval
    for stream in streams:
        stream.close()


def test_watchers_that_come_during_a_look_are_content_with_it(
    engine: SmallEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_watch, "_IDLE_S", 60.0)
    engine.silent = True
    made: list[ControlServer] = []
    with control_server(engine, served=made.append) as address, connected(address) as client:
        streams = [client.telemetry(60.0) for _ in range(3)]
        readers = [threading.Thread(target=next, args=(stream,)) for stream in streams]
        for reader in readers:
            reader.start()
        wait_until(lambda: made[0].watch.watchers == 3)
        engine.silent = False
        for reader in readers:
            reader.join(5)
        time.sleep(0.1)  # nothing happens, and that cannot be waited for
        assert engine.looks == 1
        for stream in streams:
            stream.close()


def test_asking_whether_the_engine_sleeps_takes_no_telemetry(
    engine: SmallEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_watch, "_IDLE_S", 60.0)
    with control_server(engine) as address, connected(address) as client:
        wait_until(lambda: engine.looks == 1)
        for _ in range(5):
            client.call(control_call.GET_REST)
        time.sleep(0.1)  # nothing happens, and that cannot be waited for
        assert engine.looks == 1


def test_one_watcher_too_many_is_refused(
    engine: SmallEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control_guard, "WATCHES_MAX", 2)
    made: list[ControlServer] = []
    with control_server(engine, served=made.append) as address, connected(address) as client:
        streams = [client.telemetry(0.1) for _ in range(2)]
        for stream in streams:
            next(stream)
        with pytest.raises(RefusedByServer, match="at most 2 streams at a time"):
            next(client.events())
        streams[0].close()
        wait_until(lambda: made[0].ports.guard.inside == 1)
        assert next(client.telemetry(0.1))
        streams[1].close()


@pytest.mark.long
def test_a_stream_that_has_lasted_its_time_goes_on_in_another(engine: SmallEngine) -> None:
    limits = GuardLimits(stream_wall_s_max=0.3)
    made: list[ControlServer] = []
    with (
        control_server(engine, limits=limits, served=made.append) as address,
        connected(address) as client,
        stub_at(address) as stub,
    ):
        request = pb.WatchTelemetryRequest(interval_s=60.0)
        with pytest.raises(grpc.RpcError) as raised:
            list(stub.WatchTelemetry(request, timeout=10, metadata=with_key(address)))
        wait_until(lambda: made[0].watch.watchers == 0)
        begun_s = time.monotonic()
        assert len(list(islice(client.telemetry(0.1), 12))) == 12
        assert time.monotonic() - begun_s > 2 * 0.3  # so there were three streams at least
        client.call(control_call.INJECT_FAULT, fault=LOSE)
        events = client.events(after=0)
        assert next(events)[0].number == 1
        time.sleep(0.8)  # the stream is over meanwhile
        client.call(control_call.INJECT_FAULT, fault=HANG)
        assert next(events)[0].number == 2

    assert raised.value.code() is grpc.StatusCode.UNAVAILABLE
    assert [details_of(raised.value)[0].reason] == ["STREAM_OVER"]


def test_an_event_s_number_is_of_one_run_of_the_server(
    engine: SmallEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_watch, "_IDLE_S", 0.05)
    with control_server(engine) as address, connected(address) as client:
        client.call(control_call.INJECT_FAULT, fault=LOSE)
        assert next(client.events(after=0))[0].number == 1
        run = client.run
    assert run
    with control_server(engine, address=address), connected(address) as client:
        client.call(control_call.INJECT_FAULT, fault=HANG)
        (event, _) = next(client.events(after=0))
        assert event.number == 1
        assert client.run not in (None, run)
        for after in (0, 1):
            with pytest.raises(RefusedByServer, match="the server has started again since"):
                next(client.events(after=after, run=run))
        told = failure_of_stream(address, pb.WatchEventsRequest(after=1, run=run))
        assert told.code() is grpc.StatusCode.FAILED_PRECONDITION
        assert next(client.events(after=0, run=client.run))[0] == event


def failure_of_stream(address: ControlAddress, request: Any) -> Any:
    with stub_at(address) as stub, pytest.raises(grpc.RpcError) as raised:
        list(stub.WatchEvents(request, timeout=10, metadata=with_key(address)))
    return raised.value


@pytest.mark.parametrize("method", ["WatchTelemetry", "WatchEvents"])
def test_streams_end_with_the_server_and_say_so(method: str, engine: SmallEngine) -> None:
    requests = {
        "WatchTelemetry": pb.WatchTelemetryRequest(interval_s=60.0),
        "WatchEvents": pb.WatchEventsRequest(),
    }
    made: list[ControlServer] = []
    ended: list[grpc.RpcError] = []

    def read(call: Any) -> None:
        try:
            list(call)
        except grpc.RpcError as error:
            ended.append(error)

    with control_server(engine, served=made.append) as address:
        channel = grpc.insecure_channel(str(address))
        stub = pb_grpc.ControlServiceStub(channel)
        call = getattr(stub, method)(requests[method], metadata=with_key(address))
        reader = threading.Thread(target=read, args=(call,))
        reader.start()
        wait_until(lambda: made[0].watch.watchers == 1)
    reader.join(5)
    channel.close()

    (error,) = ended
    info, retry = details_of(error)
    assert error.code() is grpc.StatusCode.UNAVAILABLE
    assert info.reason == "SERVER_ENDS"
    assert retry.retry_delay.ToSeconds() > 0


def test_an_engine_that_is_gone_is_the_last_event(
    engine: SmallEngine, server: ControlServer, client: ControlClient
) -> None:
    events = client.events(after=0)
    looks = client.telemetry(0.1)
    next(looks)
    engine.errored = True
    event, _ = next(events)

    assert event.kind is EventKind.ENGINE_GONE
    with pytest.raises(ServerUnreachable, match="the engine is gone"):
        next(events)
    with pytest.raises(ServerUnreachable, match="the engine is gone"):
        list(looks)
    with pytest.raises(ServerUnreachable, match="the engine is gone"):
        list(client.events())


@pytest.mark.parametrize("nonsense", ["[]", '{"type":"state"}', "what?", 7])
def test_an_engine_that_answers_nonsense_ends_the_watch_and_is_said(
    nonsense: Any,
    engine: SmallEngine,
    server: ControlServer,
    client: ControlClient,
    address: ControlAddress,
    caplog: pytest.LogCaptureFixture,
) -> None:
    looks = client.telemetry(0.1)
    next(looks)
    waiting = client.events()
    engine.nonsense = nonsense
    with caplog.at_level("ERROR"):
        vllm_log = logging.getLogger("vllm")
        vllm_log.addHandler(caplog.handler)
        for stream in (looks, waiting, client.telemetry(0.1), client.events(after=0)):
            with pytest.raises(ServerUnreachable, match="no longer watches its engine"):
                list(stream)
        vllm_log.removeHandler(caplog.handler)
    said = [one for one in caplog.records if "no longer watches" in one.message]
    assert {one.exc_info is not None for one in said} == {True}
    with grpc.insecure_channel(str(address)) as channel:
        asked = health_pb2.HealthCheckRequest(service=SERVICE)
        status = health_pb2_grpc.HealthStub(channel).Check(asked, timeout=5).status
    assert status == health_pb2.HealthCheckResponse.NOT_SERVING
    assert client.call(control_call.GET_STATE).steps == 1234  # who does not watch is served


@pytest.mark.long
def test_an_engine_that_fails_to_say_is_asked_again(
    engine: SmallEngine, server: ControlServer, client: ControlClient
) -> None:
    looks = client.telemetry(0.1)
    next(looks)
    engine.look_failure = RuntimeError("not now")
    time.sleep(0.2)
    engine.look_failure = None

    assert next(looks)
    looks.close()
