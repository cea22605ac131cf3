"""The console's data as JSON for its event stream."""

from collections.abc import AsyncGenerator

import msgspec

from serving.server.console.event_stream import HardwareEvent
from serving.server.control.day_night_calls import day_night_snapshot
from serving.server.control.engine_admission import admission_report
from serving.server.control.engine_watch import EngineWatch
from serving.server.day_night.controller import DayNight
from serving.server.engine_call import Engine, EngineFailed, ask
from serving.server.gateway.admission_controller import AdmissionController
from serving.server.gateway.single_flight import SingleFlight
from serving.server.gateway.snapshot_poller import SnapshotPoller
from serving.telemetry.latency_window import Latencies
from serving.wire.control_call import ExpertLoadReply, ExpertLoadRequest
from serving.wire.telemetry import MachineEvent


class ConsoleSnapshots:
    """Parts without a source are None."""

    def __init__(
        self,
        engine: Engine,
        watch: EngineWatch,
        hardware: SnapshotPoller,
        *,
        day_night: DayNight | None = None,
        admission: AdmissionController | None = None,
        latencies: Latencies | None = None,
    ) -> None:
        self._engine = engine
        self._watch = watch
        self._controller = day_night
        self._admission = admission
        self._latencies = latencies
        self._hardware = hardware
        self._parts = {
            "experts": SingleFlight(self._experts),
            "daynight": SingleFlight(self._day_night),
            "latency": SingleFlight(self._latency),
            "admission": SingleFlight(self._admission_report),
        }

    @property
    def run(self) -> str:
        """The run whose events are numbered."""
        return self._watch.run

    @property
    def last_number(self) -> int:
        """The newest event's."""
        return self._watch.last_number

    def happened(self, after: int) -> AsyncGenerator[tuple[MachineEvent, int], None]:
        """Each event after that number, and how many before it are forgotten."""
        return self._watch.events(after)

    async def hardware(self, *, max_age_s: float, within_s: float) -> HardwareEvent | None:
        """The machine; None before a slow engine's first snapshot."""
        try:
            look = await self._hardware.fresh(max_age_s, within_s)
        except TimeoutError:
            return None
        return HardwareEvent(number=look.number, json=look.json, age_s=look.age_s())

    async def part(self, name: str, *, max_age_s: float) -> bytes | None:
        """A part by its event's name, or None."""
        return await self._parts[name].fresh(max_age_s)

    async def _experts(self) -> bytes | None:
        reply = await ask(self._engine, ExpertLoadRequest())
        if not isinstance(reply, ExpertLoadReply):
            raise EngineFailed(f"no look at experts: {type(reply).__name__}")
        return msgspec.json.encode(reply.load) if reply.load.tokens else None

    async def _day_night(self) -> bytes | None:
        if self._controller is None:
            return None
        return msgspec.json.encode(await day_night_snapshot(self._controller))

    async def _latency(self) -> bytes | None:
        last = self._hardware.last
        now_s = 0.0 if last is None else last.snapshot.emulated_s
        report = None if self._latencies is None else self._latencies(now_s)
        return None if report is None else msgspec.json.encode(report)

    async def _admission_report(self) -> bytes | None:
        if self._admission is None:
            return None
        return msgspec.json.encode(admission_report(self._admission))

    def forget(self) -> None:
        """Discard cached state after a change."""
        self._hardware.forget()
        for part in self._parts.values():
            part.forget()

    async def stop(self) -> None:
        """Cancel the calls that are under way; idempotent."""
        for part in self._parts.values():
            await part.stop()
