"""Control calls before several servers: each reaches the one it names, and comes back as it was."""

import asyncio
import contextlib
import os
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import grpc
import msgspec
import pytest
import uvloop

from protos.ultraserve.v1 import control_pb2 as pb
from protos.ultraserve.v1 import control_pb2_grpc as pb_grpc
from protos.ultraserve.v1.fault_pb2 import Fault, FaultKind
from serving.access.control_key import find_control_key
from serving.server.console.event_stream import Send, StreamAsked, ToldStream
from serving.server.control.control_address import ControlAddress
from serving.server.control.control_client import (
    ControlClient,
    OutcomeUnknown,
    RefusedByServer,
    ServerUnreachable,
)
from serving.server.control.control_ports import ControlPorts, PortsAccess
from serving.server.control.relay import ControlRelay
from serving.server.gateway.grpc.rpc_errors import RpcFailure, failure_in
from serving.wire import control_call
from serving.wire.machine_state import MachineState
from tests.e2e.server_process import free_port
from tests.serving.server.control.small_engine import SmallEngine, control_server

KEY = "k" * 40


@dataclass
class Relayed:
    """Two servers and the relay before them; `passed` are the changes that it heard of."""

    engines: tuple[SmallEngine, SmallEngine]
    address: ControlAddress
    passed: list[tuple[int, str]] = field(default_factory=list)

    def client(self, replica: int | None, **given: float) -> ControlClient:
        return ControlClient(self.address, 10.0, key=KEY, replica=replica, **given)  # type: ignore[arg-type]


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    file = tmp_path / "control.key"
    file.write_text(KEY)
    file.chmod(0o600)
    return file


@pytest.fixture
def relayed(key_file: Path) -> Iterator[Relayed]:
    engines = (SmallEngine(), SmallEngine())
    with contextlib.ExitStack() as held:
        served = [control_server(each, key_file=key_file) for each in engines]
        addresses = [held.enter_context(each) for each in served]
        made = Relayed(engines=engines, address=ControlAddress(port=free_port()))
        held.enter_context(relay_of(addresses, made))
        yield made


@contextlib.contextmanager
def relay_of(addresses: list[ControlAddress], made: Relayed) -> Iterator[None]:
    started, ended = threading.Event(), asyncio.Event()
    loops: list[asyncio.AbstractEventLoop] = []

    async def serve() -> None:
        relay = ControlRelay(
            addresses,
            KEY,
            passed=lambda number, name, *_: made.passed.append((number, name)),
        )
        ports = ControlPorts(
            made.address,
            relay.handlers(),
            no_streams,
            PortsAccess(admits=lambda key: key == KEY),
            relays=True,
        )
        await ports.start()
        loops.append(asyncio.get_running_loop())
        started.set()
        await ended.wait()
        await ports.stop()
        await relay.close()

    thread = threading.Thread(target=uvloop.run, args=(serve(),))
    thread.start()
    assert started.wait(10)
    try:
        yield
    finally:
        loops[0].call_soon_threadsafe(ended.set)
        thread.join(10)
        assert not thread.is_alive()


def no_streams(asked: StreamAsked, send: Send) -> ToldStream:
    raise AssertionError("no page is opened")


def test_a_call_reaches_the_replica_that_it_names_alone(relayed: Relayed) -> None:
    relayed.engines[1].state = _with_steps(relayed.engines[1], 77)
    with relayed.client(0) as zero, relayed.client(1) as one:
        assert zero.call(control_call.GET_STATE).steps != 77
        assert one.call(control_call.GET_STATE).steps == 77
        healed = one.call(control_call.HEAL)
    assert healed.healed == ()
    assert [len([s for s in e.lines if '"heal"' in s]) for e in relayed.engines] == [0, 1]
    assert (1, "Heal") in relayed.passed
    assert (0, "Heal") not in relayed.passed


def _with_steps(engine: SmallEngine, steps: int) -> MachineState:
    return msgspec.structs.replace(engine.state, steps=steps)


@pytest.mark.parametrize("replica", [None, 2])
def test_a_call_for_no_replica_is_refused_but_for_what_is_alike_of_all(
    relayed: Relayed, replica: int | None
) -> None:
    with relayed.client(replica) as client:
        with pytest.raises(RefusedByServer, match=r"^replica=.*: expected 0 to 1, by --replica$"):
            client.call(control_call.GET_STATE)
        if replica is None:
            assert client.call(control_call.DESCRIBE_SYSTEM).system.name


def test_one_engine_refuses_a_replica_s_name() -> None:
    with control_server(SmallEngine()) as address:
        key = find_control_key(address.port, os.environ)
        with (
            ControlClient(address, 10.0, key=key, replica=1) as client,
            pytest.raises(RefusedByServer, match="replica=1: expected none: this is one engine"),
        ):
            client.call(control_call.GET_STATE)


def test_a_refusal_comes_back_with_its_code_words_and_details(relayed: Relayed) -> None:
    with grpc.insecure_channel(str(relayed.address)) as channel:
        stub = pb_grpc.ControlServiceStub(channel)
        shown = (("authorization", f"Bearer {KEY}"), ("ultraserve-replica", "1"))
        fault = Fault(kind=FaultKind.FAULT_KIND_LOSE_CHIP, chip=99)
        with pytest.raises(grpc.RpcError) as raised:
            stub.InjectFault(pb.InjectFaultRequest(fault=fault), metadata=shown, timeout=10)
        with pytest.raises(grpc.RpcError) as stranger:
            stub.GetState(pb.GetStateRequest(), timeout=10)
    assert raised.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "99" in str(raised.value.details())
    assert stranger.value.code() is grpc.StatusCode.UNAUTHENTICATED


@pytest.mark.long
def test_a_change_is_done_once_though_it_is_asked_for_again(relayed: Relayed) -> None:
    relayed.engines[0].silent = True
    with relayed.client(0) as client, pytest.raises(OutcomeUnknown) as raised:
        client.call(control_call.HEAL)
    relayed.engines[0].silent = False
    again = ControlClient(
        relayed.address, 10.0, key=KEY, replica=0, action_key=raised.value.key, patience_s=10.0
    )
    with again as client:
        client.call(control_call.HEAL)
    assert len([line for line in relayed.engines[0].lines if '"heal"' in line]) == 1


@pytest.mark.long
def test_streams_go_on_until_their_client_or_their_replica_ends(relayed: Relayed) -> None:
    with relayed.client(1) as client:
        looks = client.telemetry(0.25)
        first, _ = next(looks)
        later, _ = next(looks)
        assert later.steps > first.steps
        looks.close()  # type: ignore[attr-defined]
        events = client.events(0)
        relayed.engines[1].errored = True
        with pytest.raises(ServerUnreachable):
            list(events)


def test_a_replica_that_is_gone_is_told_as_that(key_file: Path) -> None:
    made = Relayed(engines=(SmallEngine(), SmallEngine()), address=ControlAddress(port=free_port()))
    gone = ControlAddress(port=free_port())
    one = control_server(made.engines[0], key_file=key_file)
    with one as address, relay_of([gone, address], made):
        with (
            made.client(0) as client,
            pytest.raises(ServerUnreachable, match="replica 0 does not answer"),
        ):
            client.call(control_call.GET_STATE)
        with made.client(None) as client:
            assert client.call(control_call.DESCRIBE_SYSTEM).system.name
        with made.client(1) as client:
            assert client.call(control_call.GET_STATE).steps


def test_a_failure_is_read_as_it_was_written() -> None:
    failure = RpcFailure(
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        "CALLS",
        "at most 3",
        retry_after_s=1.5,
        violations={"engine": "at most 3"},
        field="chip",
        metadata={"a": "b"},
    )
    assert failure_in(failure.to_status(), failure.code) == failure
