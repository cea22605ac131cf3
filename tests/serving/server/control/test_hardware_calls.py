"""The control service's look at the hardware is everybody's: the engine is asked once.

Unless something was changed since.
"""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
import pytest

from protos.ultraserve.v1 import control_pb2 as pb
from protos.ultraserve.v1 import fault_pb2
from serving.server.control import control_service
from serving.server.control.control_address import ControlAddress
from serving.server.control.control_service import ControlService
from serving.server.control.engine_watch import EngineWatch
from serving.server.gateway.snapshot_poller import SnapshotPoller
from serving.wire import control_call
from serving.wire.machine_snapshot import MachineSnapshot
from serving.wire.machine_state import FaultStage
from tests.serving.plugin.seen_engine import Seen
from tests.serving.server.control.http_calls import SERVICE, browser, with_key
from tests.serving.server.control.raw_call import stub_at
from tests.serving.server.control.raw_call import with_key as metadata
from tests.serving.server.control.small_engine import connected, control_server


class CountingEngine:
    """A real engine that counts what it is asked."""

    errored = False
    generate = None

    def __init__(self) -> None:
        self.seen = Seen()
        self.asked = 0

    async def collective_rpc(
        self,
        method: str,
        timeout: float | None = None,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> list[Any]:
        del method, timeout, kwargs
        self.asked += 1
        return [self.seen.engine.control(*args)]

    async def is_sleeping(self) -> bool:
        return False

    async def is_paused(self) -> bool:
        return False


def test_concurrent_calls_and_pages_share_one_snapshot() -> None:
    async def look() -> None:
        engine: Any = CountingEngine()
        watch = SnapshotPoller(engine)
        service = ControlService(engine, watch=EngineWatch(engine), hardware=watch)
        request = pb.GetHardwareRequest()
        shown, *others = await asyncio.gather(*(service.get_hardware(request) for _ in range(5)))
        page = await watch.fresh(60.0)
        assert engine.asked == 1
        assert all(each == shown for each in others)
        assert shown.emulated_s == page.snapshot.emulated_s

    asyncio.run(look())


def inject_over_grpc(address: ControlAddress) -> None:
    fault = fault_pb2.Fault(kind=fault_pb2.FAULT_KIND_SLOW_CHIP, chip=2, factor=2.0)
    with stub_at(address) as stub:
        stub.InjectFault(pb.InjectFaultRequest(fault=fault), timeout=10, metadata=metadata(address))


def inject_in_json(address: ControlAddress) -> None:
    fault = {"kind": "FAULT_KIND_SLOW_CHIP", "chip": 2, "factor": 2.0}
    with browser(address) as client:
        answer = client.post(
            f"{SERVICE}/InjectFault", json={"fault": fault}, headers=with_key(address)
        )
    assert answer.status_code == 200, answer.text


def first_of_a_stream(address: ControlAddress) -> MachineSnapshot:
    """The look that a page is shown first, which may be 30 s old."""
    asked = {"url": "/stream?interval_s=60", "headers": with_key(address)}
    with browser(address) as client, client.stream("GET", **asked) as stream:
        lines = stream.iter_lines()
        assert any(line == "event: hardware" for line in lines)
        return msgspec.json.decode(next(lines).removeprefix("data: "), type=MachineSnapshot)


@pytest.mark.long
@pytest.mark.parametrize("inject", [inject_over_grpc, inject_in_json])
def test_what_was_answered_is_in_every_look_from_then_on_however_old_one_may_be(
    inject: Callable[[ControlAddress], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control_service, "_HARDWARE_AGE_S_MAX", 3_600.0)
    with control_server(CountingEngine()) as address, connected(address) as client:
        assert not client.call(control_call.GET_HARDWARE).state.faults
        inject(address)
        assert [each.fault.chip for each in first_of_a_stream(address).state.faults] == [2]
        client.call(control_call.HEAL)
        (fault,) = client.call(control_call.GET_HARDWARE).state.faults
        assert fault.stage is FaultStage.HEALED
