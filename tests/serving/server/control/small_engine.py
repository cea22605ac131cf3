"""An engine of a few chips at the seam of vLLM's AsyncLLM, and a control server before it.

It keeps real state and answers in the executor's lines, but computes nothing.
"""

import asyncio
import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import msgspec
import numpy as np
import uvloop

from emulator.errors import ConfigError
from emulator.sim.clock import VirtualClock
from emulator.specs.fault import Fault, FaultKind
from emulator.ultraserver.ceilings import ceilings_of
from serving.access.control_key import find_control_key, held_control_key
from serving.engine.engine_time import EngineTime
from serving.engine.live_recording import LiveRecording
from serving.server.control.control_address import ControlAddress
from serving.server.control.control_client import ControlClient, ControlTls
from serving.server.control.control_server import ControlServer, ServerParts
from serving.server.day_night.controller import DayNight
from serving.server.gateway.admission_controller import AdmissionController
from serving.wire.control_call import (
    METHOD,
    ControlReply,
    DescribeReply,
    DescribeRequest,
    FaultReport,
    HealReport,
    HealRequest,
    InjectRequest,
    RecordingRequest,
    RecordRequest,
    Refusal,
    RefusalCode,
    StateReply,
    StepsRequest,
    TelemetryReply,
    TelemetryRequest,
    WhatIfRequest,
    request_from_json,
    to_json,
)
from serving.wire.machine_state import (
    ChipHealth,
    FaultEvent,
    FaultRecord,
    FaultStage,
    Recovery,
)
from tests.e2e.server_process import free_port
from tests.serving.telemetry.machine_states import a_state
from tests.serving.telemetry.neuron_tools.looks import a_description
from tests.serving.telemetry.recorded_steps import DECODE, PREFILL, a_cost_model, costing, queues
from tests.serving.telemetry.telemetry_snapshots import a_telemetry

_HEALTH = {
    FaultKind.LOSE_CHIP: ChipHealth.LOST,
    FaultKind.HANG_CHIP: ChipHealth.HUNG,
    FaultKind.SLOW_CHIP: ChipHealth.SLOW,
}


class SmallEngine:
    """Two chips and a spare; a fault is recovered at the next reading of the state.

    Every snapshot advances it by a step; lines of other calls are recorded. While recording, each
    question about that takes a decode step and a prefill, `steps` in all. It does not generate. Set
    `errored` to end it, `silent` to leave calls unanswered, `failure` to fail them, `nonsense` as
    the answer to snapshots.
    """

    generate = None
    tokenizer = None

    def __init__(self, *, steps: int = 4) -> None:
        self.steps_left = steps
        self._clock = VirtualClock()
        self._clock.wait_until_ns(7_000_000)
        self._recording = LiveRecording(EngineTime(self._clock), ceilings_of(a_cost_model()))
        self.state = msgspec.structs.replace(a_state(), faults=())
        self.errored = False
        self.silent = False
        self.failure: Exception | None = None
        self.lines: list[str] = []
        self.waiting = 0
        self.looks = 0
        self._stages: dict[int, FaultStage] = {}
        self._events: list[FaultEvent] = []
        self.look_failure: Exception | None = None
        self.nonsense: Any = None

    async def collective_rpc(
        self,
        method: str,
        timeout: float | None = None,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> list[Any]:
        assert (method, timeout, kwargs) == (METHOD, None, None)
        (line,) = args
        request = request_from_json(line)
        if isinstance(request, TelemetryRequest):
            return [await self._look(request.events_after)]
        self.lines.append(line)
        self.waiting += 1
        try:
            while self.silent:
                await asyncio.sleep(0.005)
        finally:
            self.waiting -= 1
        if self.failure is not None:
            raise self.failure
        return [to_json(self._reply(line))]

    async def is_sleeping(self) -> bool:
        return False

    async def is_paused(self) -> bool:
        return False

    async def _look(self, after: int | None) -> Any:
        """The server's own polling."""
        while self.silent:
            await asyncio.sleep(0.01)  # the test's thread ends it
        if self.look_failure is not None:
            raise self.look_failure
        if self.nonsense is not None:
            return self.nonsense
        self.looks += 1
        events = self._fault_events()
        telemetry = a_telemetry(
            emulated_s=self.state.emulated_s,
            steps=self.state.steps + self.looks,
            faults=len(self.state.faults),
        )
        return to_json(
            TelemetryReply(
                telemetry=telemetry,
                fault_event_number=len(events),
                fault_events=() if after is None else events[after:],
                leases=self.state.leases,
                versions=self.state.versions,
                sleep=self.state.sleep,
            )
        )

    def _fault_events(self) -> tuple[FaultEvent, ...]:
        """Each new stage of each fault at a snapshot."""
        for record in self.state.faults:
            if self._stages.get(record.number) is not record.stage:
                self._stages[record.number] = record.stage
                number = len(self._events) + 1
                emulated_s = self.state.emulated_s
                event = FaultEvent(number=number, emulated_s=emulated_s, ranks_up=2, fault=record)
                self._events.append(event)
        return tuple(self._events)

    def _reply(self, line: str) -> ControlReply:
        request = request_from_json(line)
        if isinstance(request, DescribeRequest):
            return DescribeReply(description=a_description(chips=3))
        try:
            if isinstance(request, InjectRequest):
                return self._inject(request)
            if isinstance(request, HealRequest):
                return self._heal(request)
            if isinstance(request, RecordRequest | RecordingRequest | StepsRequest | WhatIfRequest):
                recorded = self._recording.answer(request)
                self._step()
                return recorded
        except ConfigError as error:
            return Refusal(code=RefusalCode.INVALID, message=str(error), field=error.field)
        reply = StateReply(state=self.state)
        self._recover()
        return reply

    def _step(self) -> None:
        if not self.steps_left:
            return
        work = PREFILL if self.steps_left % 2 else DECODE
        cost = a_cost_model().cost(work)
        recording = self._recording.current
        assert recording is not None, "it is asked about one"
        recording.add(
            cost,
            work,
            costing=costing(),
            loads=None,
            begin_ns=self._clock.now_ns(),
            pause_ns=0,
            chips=np.arange(2),
            queues=queues(),
        )
        self.steps_left -= 1
        self._clock.wait_until_ns(self._clock.now_ns() + cost.duration_ns)

    def _inject(self, request: InjectRequest) -> ControlReply:
        fault = request.fault
        chips = self.state.chips
        if fault.chip >= len(chips):
            raise ConfigError(field="chip", value=fault.chip, expected=f"0 to {len(chips) - 1}")
        if fault.chip >= 0 and chips[fault.chip].health is ChipHealth.LOST:
            return Refusal(
                code=RefusalCode.PRECONDITION, message=f"chip {fault.chip} is lost already"
            )
        survivable = sum(chip.health is ChipHealth.UP for chip in chips) > 1
        reason = "a spare takes over" if survivable else "no chip is left"
        if request.dry_run:
            return FaultReport(accepted=False, survivable=survivable, reason=reason)
        number = len(self.state.faults) + 1
        self._set_health(fault, _HEALTH.get(fault.kind, ChipHealth.UP))
        record = FaultRecord(
            number=number,
            fault=fault,
            injected_emulated_s=self.state.emulated_s,
            survivable=survivable,
            reason=reason,
            stage=FaultStage.PENDING,
            recovery=None,
            healed_emulated_s=None,
        )
        self.state = msgspec.structs.replace(self.state, faults=(*self.state.faults, record))
        return FaultReport(accepted=True, survivable=survivable, reason=reason, number=number)

    def _set_health(self, fault: Fault, health: ChipHealth) -> None:
        chips = tuple(
            msgspec.structs.replace(chip, health=health) if chip.chip == fault.chip else chip
            for chip in self.state.chips
        )
        self.state = msgspec.structs.replace(self.state, chips=chips)

    def _recover(self) -> None:
        faults = tuple(map(recovered, self.state.faults))
        self.state = msgspec.structs.replace(self.state, faults=faults)

    def _heal(self, request: HealRequest) -> HealReport:
        meant = [
            record
            for record in self.state.faults
            if record.stage is not FaultStage.HEALED
            and request.chip in (None, record.fault.chip)
            and request.rack in (None, record.fault.rack)
        ]
        for record in meant:
            self._set_health(record.fault, ChipHealth.UP)
        faults = tuple(
            msgspec.structs.replace(
                record, stage=FaultStage.HEALED, healed_emulated_s=self.state.emulated_s
            )
            if record in meant
            else record
            for record in self.state.faults
        )
        self.state = msgspec.structs.replace(self.state, faults=faults)
        return HealReport(healed=tuple(record.number for record in meant))


def recovered(record: FaultRecord) -> FaultRecord:
    if record.stage is not FaultStage.PENDING:
        return record
    recovery = Recovery(
        emulated_ns=2_500_000,
        wall_s=0.125,
        requests_moved=3,
        requests_failed=0 if record.survivable else 2,
        experts_reloaded=64,
    )
    stage = FaultStage.RECOVERED if record.survivable else FaultStage.FAILED
    return msgspec.structs.replace(record, stage=stage, recovery=recovery)


def wait_until(condition: Callable[[], bool]) -> None:
    """Wait for another thread."""
    end_s = time.monotonic() + 5
    while not condition():
        assert time.monotonic() < end_s, "it did not happen"
        time.sleep(0.005)


@contextlib.contextmanager
def control_server(
    engine: Any,
    day_night: DayNight | None = None,
    *,
    admission: AdmissionController | None = None,
    console_port: int | None = None,
    served: Callable[[ControlServer], None] = lambda _: None,
    **given: Any,
) -> Iterator[ControlAddress]:
    """Serve `engine` in a thread with the loop of vLLM's API process.

    `served` is called with the server. Its key is where commands find it.
    """
    address = given.pop("address", None) or ControlAddress(port=free_port())
    started = threading.Event()
    ended: list[asyncio.Event] = []
    loops: list[asyncio.AbstractEventLoop] = []

    async def serve() -> None:
        parts = ServerParts(day_night=day_night, admission=admission, console_port=console_port)
        server = ControlServer(engine, address, parts, admits=lambda shown: shown == key, **given)
        await server.start()
        served(server)
        ended.append(asyncio.Event())
        loops.append(asyncio.get_running_loop())
        started.set()
        await ended[0].wait()
        await server.stop()

    key_file = given.pop("key_file", None)
    with held_control_key(address.port, os.environ, key_file=key_file) as key:
        thread = threading.Thread(target=uvloop.run, args=(serve(),))
        thread.start()
        assert started.wait(10)
        try:
            yield address
        finally:
            loops[0].call_soon_threadsafe(ended[0].set)
            thread.join(10)
            assert not thread.is_alive()


def connected(
    address: ControlAddress,
    *,
    timeout_s: float = 10.0,
    tls: ControlTls | None = None,
    **outcomes: Any,
) -> ControlClient:
    key = find_control_key(address.port, os.environ)
    return ControlClient(address, timeout_s, key=key, tls=tls, **outcomes)
