"""The control service `ultraserve.v1.ControlService`: the calls that the API's process answers.

It decides nothing. The engine applies its calls between two steps: see `generic_service`. A slow
read returns the last answer; a change has an outcome, see `ActionLedger`. Other calls go to the
day-night and admission controllers, or to vLLM.
"""

from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import PurePath
from typing import Final

from emulator.errors import ConfigError
from protos.ultraserve.v1 import control_pb2 as pb
from serving.server.control.action_ledger import ANSWER_WALL_S_MAX
from serving.server.control.call_failure import answer
from serving.server.control.control_messages import respond
from serving.server.control.day_night_calls import DayNightCalls
from serving.server.control.engine_admission import AdmissionCalls, AdmissionClosing
from serving.server.control.engine_watch import EngineWatch
from serving.server.control.generic_service import answers, streams
from serving.server.control.sleep_calls import SleepCalls
from serving.server.day_night.controller import DayNight
from serving.server.engine_call import ServedEngine
from serving.server.gateway.admission_controller import AdmissionController
from serving.server.gateway.snapshot_poller import SnapshotPoller
from serving.wire.control_call import GET_HARDWARE, PUBLISH, PublishRequest, VersionReport
from serving.wire.machine_snapshot import MachineSnapshot

NOTE_LENGTH_MAX: Final = 1_000
"""Characters; every state of the machine carries the notes."""

PATH_BYTES_MAX: Final = 4_095
PATH_PART_BYTES_MAX: Final = 255
"""Linux's PATH_MAX and NAME_MAX (limits.h), the first without its final zero."""

_HARDWARE_AGE_S_MAX: Final = 0.0
"""Only concurrent calls share a snapshot."""


class ControlService(SleepCalls, DayNightCalls, AdmissionCalls):
    """The calls that are not the engine's alone."""

    def __init__(
        self,
        engine: ServedEngine,
        day_night: DayNight | None = None,
        *,
        admission: AdmissionController | None = None,
        watch: EngineWatch,
        hardware: SnapshotPoller,
    ) -> None:
        self._engine = engine
        self._hardware = hardware
        self._day_night = day_night
        self._closing = AdmissionClosing(admission)
        self._watch = watch

    @answers(GET_HARDWARE)
    async def get_hardware(self, request: pb.GetHardwareRequest) -> MachineSnapshot:
        """Return a snapshot, shared with concurrent callers."""
        del request
        return (await self._hardware.fresh(_HARDWARE_AGE_S_MAX, ANSWER_WALL_S_MAX)).snapshot

    @answers(PUBLISH)
    async def publish(self, request: pb.PublishRequest) -> VersionReport:
        """Serve other weights, block by block."""
        if len(request.note) > NOTE_LENGTH_MAX:
            expected = f"at most {NOTE_LENGTH_MAX:,} characters"
            raise ConfigError("note", f"{request.note[:20]}...", expected)
        weights_dir = await self._kept_weights(checked_path(request.weights_dir))
        asked = PublishRequest(weights_dir=weights_dir, note=request.note)
        reply = await answer(self._engine, asked, VersionReport)
        self._watch.look_now()
        return reply

    @streams("WatchTelemetry")
    async def watch_telemetry(
        self, request: pb.WatchTelemetryRequest
    ) -> AsyncIterator[pb.WatchTelemetryResponse]:
        """Stream telemetry."""
        async with aclosing(self._watch.telemetry(request.interval_s)) as looks:
            async for look, skipped in looks:
                yield respond(pb.WatchTelemetryResponse, look, skipped=skipped)

    @streams("WatchEvents")
    async def watch_events(
        self, request: pb.WatchEventsRequest
    ) -> AsyncIterator[pb.WatchEventsResponse]:
        """Stream events."""
        after = request.after if request.HasField("after") else None
        run = request.run if request.HasField("run") else None
        async with aclosing(self._watch.events(after, run)) as events:
            async for event, lost in events:
                yield respond(pb.WatchEventsResponse, event, lost=lost, run=self._watch.run)


def checked_path(weights_dir: str) -> str:
    """A path valid on this machine; raises ConfigError."""
    path = PurePath(weights_dir)
    parts = [len(part.encode("utf-8", "surrogatepass")) for part in path.parts]
    length = len(weights_dir.encode("utf-8", "surrogatepass"))
    fits = length <= PATH_BYTES_MAX and max(parts, default=0) <= PATH_PART_BYTES_MAX
    if not (path.is_absolute() and fits and weights_dir.isprintable()):
        shown = weights_dir if len(weights_dir) <= 60 else f"{weights_dir[:60]}..."
        expected = "the absolute path of a directory on the server's machine"
        raise ConfigError("weights_dir", shown, expected)
    return weights_dir
