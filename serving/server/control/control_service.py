"""The control service `ultraserve.v1.ControlService`: gRPC in the API's process.

It decides nothing: a request becomes one line of JSON for the engine, which applies it between two
steps, and the engine's line becomes the answer. A question that takes too long is answered with
what the engine said last; a call that changes something has an outcome, see `ActionLedger`. Calls
about day and night go to the server's controller, about who may enter to the door, vLLM's own words
to vLLM. What cannot be is raised: see `call_failure`.
"""

from pathlib import PurePath
from typing import Any, Final

import grpc.aio
import msgspec

from emulator.errors import ConfigError
from protos.ultraserve.v1 import control_pb2 as pb
from protos.ultraserve.v1 import control_pb2_grpc as pb_grpc
from serving.server.control.admission_calls import AdmissionCalls
from serving.server.control.admission_closing import DoorClosing
from serving.server.control.control_messages import fault_from_message, respond
from serving.server.control.day_night_calls import DayNightCalls
from serving.server.control.engine_admission import EngineDoor
from serving.server.control.engine_answer import answer
from serving.server.control.engine_sleep_state import ServedEngine
from serving.server.control.engine_watch import EngineWatch
from serving.server.control.hardware_calls import HardwareCalls
from serving.server.control.last_replies import LastReplies
from serving.server.control.recording_calls import RecordingCalls
from serving.server.control.request_counts import counts
from serving.server.control.sleep_calls import RestCalls
from serving.server.control.watch_calls import WatchCalls
from serving.server.day_night.controller import DayNight
from serving.server.gateway.snapshot_poller import SnapshotPoller
from serving.wire.control_call import (
    DescribeReply,
    DescribeRequest,
    FaultReport,
    HealReport,
    HealRequest,
    InjectRequest,
    PlacementReply,
    PlacementRequest,
    PowerReply,
    PowerRequest,
    PublishRequest,
    RollbackRequest,
    StateReply,
    StateRequest,
    VersionReport,
)

NOTE_LENGTH_MAX: Final = 1_000
"""Characters of what stands beside a version; every state of the machine carries it."""

PATH_BYTES_MAX: Final = 4_095
PATH_PART_BYTES_MAX: Final = 255
"""Linux's PATH_MAX and NAME_MAX (limits.h), the first without its ending zero."""


class ControlService(
    RestCalls,
    DayNightCalls,
    RecordingCalls,
    AdmissionCalls,
    WatchCalls,
    HardwareCalls,
    pb_grpc.ControlServiceServicer,
):
    """Answers each call with what the engine says."""

    def __init__(
        self,
        engine: ServedEngine,
        day_night: DayNight | None = None,
        *,
        door: EngineDoor | None = None,
        watch: EngineWatch,
        hardware: SnapshotPoller,
        replies: LastReplies,
    ) -> None:
        self._engine = engine
        self._replies = replies
        self._hardware = hardware
        self._day_night = day_night
        self._door = door
        self._closing = DoorClosing(door)
        self._watch = watch

    async def DescribeSystem(  # noqa: N802  the name that the contract gives
        self, request: pb.DescribeSystemRequest, context: "Context"
    ) -> pb.DescribeSystemResponse:
        """Say what is emulated."""
        del request, context
        reply, _ = await self._replies.reply(DescribeRequest(), DescribeReply)
        return respond(pb.DescribeSystemResponse, reply.description)

    async def GetState(  # noqa: N802  the name that the contract gives
        self, request: pb.GetStateRequest, context: "Context"
    ) -> pb.GetStateResponse:
        """Show the machine between two steps."""
        del request, context
        reply, age_s = await self._replies.reply(StateRequest(), StateReply)
        state = msgspec.structs.replace(reply.state, age_s=age_s)
        return respond(pb.GetStateResponse, state)

    async def GetPlacement(  # noqa: N802  the name that the contract gives
        self, request: pb.GetPlacementRequest, context: "Context"
    ) -> pb.GetPlacementResponse:
        """Show where experts lie."""
        del context
        asked = PlacementRequest(**counts(request, ("first_layer",)))
        reply, _ = await self._replies.reply(asked, PlacementReply)
        return respond(pb.GetPlacementResponse, reply.page)

    async def GetPower(  # noqa: N802  the name that the contract gives
        self, request: pb.GetPowerRequest, context: "Context"
    ) -> pb.GetPowerResponse:
        """Show power and energy."""
        del request, context
        reply, _ = await self._replies.reply(PowerRequest(), PowerReply)
        return respond(pb.GetPowerResponse, reply.report)

    async def InjectFault(  # noqa: N802  the name that the contract gives
        self, request: pb.InjectFaultRequest, context: "Context"
    ) -> pb.InjectFaultResponse:
        """Let a fault happen, or only ask whether it would be survived."""
        del context
        asked = InjectRequest(fault=fault_from_message(request.fault), dry_run=request.dry_run)
        reply = await answer(self._engine, asked, FaultReport)
        self._watch.look_now()
        return respond(pb.InjectFaultResponse, reply)

    async def Heal(  # noqa: N802  the name that the contract gives
        self, request: pb.HealRequest, context: "Context"
    ) -> pb.HealResponse:
        """Repair one chip, one rack, or everything."""
        del context
        asked = HealRequest(**counts(request, ("chip", "rack")))
        reply = await answer(self._engine, asked, HealReport)
        self._watch.look_now()
        return respond(pb.HealResponse, reply)

    async def Publish(  # noqa: N802  the name that the contract gives
        self, request: pb.PublishRequest, context: "Context"
    ) -> pb.PublishResponse:
        """Serve other weights, block by block."""
        del context
        if len(request.note) > NOTE_LENGTH_MAX:
            expected = f"at most {NOTE_LENGTH_MAX:,} characters"
            raise ConfigError(field="note", value=f"{request.note[:20]}...", expected=expected)
        weights_dir = await self._kept_weights(checked_path(request.weights_dir))
        asked = PublishRequest(weights_dir=weights_dir, note=request.note)
        reply = await answer(self._engine, asked, VersionReport)
        self._watch.look_now()
        return respond(pb.PublishResponse, reply)

    async def Rollback(  # noqa: N802  the name that the contract gives
        self, request: pb.RollbackRequest, context: "Context"
    ) -> pb.RollbackResponse:
        """Serve the weights before the present ones again."""
        del request, context
        reply = await answer(self._engine, RollbackRequest(), VersionReport)
        self._watch.look_now()
        return respond(pb.RollbackResponse, reply)


def checked_path(weights_dir: str) -> str:
    """A path that this machine could have; raises ConfigError for another."""
    path = PurePath(weights_dir)
    parts = [len(part.encode("utf-8", "surrogatepass")) for part in path.parts]
    length = len(weights_dir.encode("utf-8", "surrogatepass"))
    fits = length <= PATH_BYTES_MAX and max(parts, default=0) <= PATH_PART_BYTES_MAX
    if not (path.is_absolute() and fits and weights_dir.isprintable()):
        shown = weights_dir if len(weights_dir) <= 60 else f"{weights_dir[:60]}..."
        expected = "the absolute path of a directory on the server's machine"
        raise ConfigError(field="weights_dir", value=shown, expected=expected)
    return weights_dir


Context = grpc.aio.ServicerContext[Any, Any]
