"""The control service `ultraserve.v1.Control`: gRPC in the API's process, a call to the engine.

It decides nothing: a request becomes one line of JSON for the engine, which applies it between two
steps, and the engine's line becomes the answer or a gRPC status. Calls about day and night go to
the server's controller, vLLM's own words to vLLM.
"""

import logging
from collections.abc import Sequence
from typing import Any, Final, TypeVar

import grpc
import grpc.aio
from google.protobuf.message import Message

from emulator.errors import ConfigError
from protos.ultraserve.v1 import control_pb2 as pb
from protos.ultraserve.v1 import control_pb2_grpc as pb_grpc
from serving.controller.day_night import DayNight
from serving.endpoints.control_address import ControlAddress
from serving.endpoints.control_messages import fault_from_message, to_message
from serving.endpoints.day_night_calls import DayNightCalls
from serving.endpoints.engine_answer import answer
from serving.endpoints.engine_rest import ServedEngine
from serving.endpoints.rest_calls import RestCalls
from serving.errors import PortInUse
from serving.metrics.control_call import (
    ControlReply,
    ControlRequest,
    FaultReport,
    HealReport,
    HealRequest,
    InjectRequest,
    PublishRequest,
    RecordingRequest,
    RecordingState,
    RecordRequest,
    ReliefReply,
    ReliefRequest,
    RollbackRequest,
    StateReply,
    StateRequest,
    StepsReply,
    StepsRequest,
    VersionReport,
)

# Below "vllm", where the API's process has configured handlers; a name of our own prints nothing.
logger = logging.getLogger(f"vllm.{__name__}")

_CALLS_MAX: Final = 16
"""Calls at a time; one more is refused with RESOURCE_EXHAUSTED."""

_STOP_GRACE_S: Final = 1.0

ReplyT = TypeVar("ReplyT", bound=ControlReply)


class ControlService(RestCalls, DayNightCalls, pb_grpc.ControlServicer):
    """Answers each call with what the engine says."""

    def __init__(self, engine: ServedEngine, day_night: DayNight | None = None) -> None:
        self._engine = engine
        self._day_night = day_night

    async def GetState(  # noqa: N802  the name that the contract gives
        self, request: pb.GetStateRequest, context: "Context[Any, Any]"
    ) -> pb.MachineState:
        """Show the machine between two steps."""
        del request
        reply = await self._answer(StateRequest(), StateReply, context)
        return to_message(reply.state, pb.MachineState)

    async def InjectFault(  # noqa: N802  the name that the contract gives
        self, request: pb.InjectFaultRequest, context: "Context[Any, Any]"
    ) -> pb.FaultReport:
        """Let a fault happen, or only ask whether it would be survived."""
        try:
            fault = fault_from_message(request.fault)
        except ConfigError as error:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        asked = InjectRequest(fault=fault, dry_run=request.dry_run)
        return to_message(await self._answer(asked, FaultReport, context), pb.FaultReport)

    async def Heal(  # noqa: N802  the name that the contract gives
        self, request: pb.HealRequest, context: "Context[Any, Any]"
    ) -> pb.HealReport:
        """Repair one chip, one rack, or everything."""
        given = await _counts(request, ("chip", "rack"), context)
        reply = await self._answer(HealRequest(**given), HealReport, context)
        return to_message(reply, pb.HealReport)

    async def RecordSteps(  # noqa: N802  the name that the contract gives
        self, request: pb.RecordStepsRequest, context: "Context[Any, Any]"
    ) -> pb.RecordingState:
        """Begin to record steps, or end it."""
        given = await _counts(request, ("ends", "steps_max"), context)
        reply = await self._answer(RecordRequest(**given), RecordingState, context)
        return to_message(reply, pb.RecordingState)

    async def GetRecording(  # noqa: N802  the name that the contract gives
        self, request: pb.GetRecordingRequest, context: "Context[Any, Any]"
    ) -> pb.RecordingState:
        """Say how far a recording is."""
        given = await _counts(request, ("recording",), context)
        reply = await self._answer(RecordingRequest(**given), RecordingState, context)
        return to_message(reply, pb.RecordingState)

    async def GetSteps(  # noqa: N802  the name that the contract gives
        self, request: pb.GetStepsRequest, context: "Context[Any, Any]"
    ) -> pb.StepPage:
        """Show some of a recording's steps."""
        given = await _counts(request, ("recording", "first_step"), context)
        reply = await self._answer(StepsRequest(**given), StepsReply, context)
        return to_message(reply.page, pb.StepPage)

    async def GetRelief(  # noqa: N802  the name that the contract gives
        self, request: pb.GetReliefRequest, context: "Context[Any, Any]"
    ) -> pb.StepRelief:
        """Cost a sampled step again with things that are faster."""
        given = await _counts(request, ("recording", "sample"), context)
        asked = ReliefRequest(**given, factor=request.factor)
        reply = await self._answer(asked, ReliefReply, context)
        return to_message(reply.relief, pb.StepRelief)

    async def Publish(  # noqa: N802  the name that the contract gives
        self, request: pb.PublishRequest, context: "Context[Any, Any]"
    ) -> pb.VersionReport:
        """Serve other weights, block by block."""
        weights_dir = await self._kept_weights(request.weights_dir, context)
        asked = PublishRequest(weights_dir=weights_dir, note=request.note)
        reply = await self._answer(asked, VersionReport, context)
        return to_message(reply, pb.VersionReport)

    async def Rollback(  # noqa: N802  the name that the contract gives
        self, request: pb.RollbackRequest, context: "Context[Any, Any]"
    ) -> pb.VersionReport:
        """Serve the weights before the present ones again."""
        del request
        reply = await self._answer(RollbackRequest(), VersionReport, context)
        return to_message(reply, pb.VersionReport)

    async def _answer(
        self, request: ControlRequest, kind: type[ReplyT], context: "Context[Any, Any]"
    ) -> ReplyT:
        """The engine's reply, which is of `kind`; anything else ends the call with its status."""
        return await answer(self._engine, request, kind, context)


async def _counts(
    request: Message, names: Sequence[str], context: "Context[Any, Any]"
) -> dict[str, int]:
    """Those of the numbers that the request has; one below 0 ends the call."""
    optional = request.DESCRIPTOR.fields_by_name
    given = {
        name: int(getattr(request, name))
        for name in names
        if not optional[name].has_presence or request.HasField(name)
    }
    for name, value in given.items():
        if value < 0:
            error = ConfigError(field=name, value=value, expected="at least 0")
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
    return given


class ControlServer:
    """The service on its address, from `start` to `stop`; both in the loop of the engine's client.

    `start` raises PortInUse when another program listens there.
    """

    def __init__(
        self, engine: ServedEngine, address: ControlAddress, day_night: DayNight | None = None
    ) -> None:
        self._address = address
        # Without sharing, a second server on the port is told so instead of taking half the calls.
        self._server = grpc.aio.server(
            options=[("grpc.so_reuseport", 0)], maximum_concurrent_rpcs=_CALLS_MAX
        )
        pb_grpc.add_ControlServicer_to_server(ControlService(engine, day_night), self._server)

    async def start(self) -> None:
        """Listen."""
        try:
            self._server.add_insecure_port(str(self._address))
        except RuntimeError as error:
            raise PortInUse(self._address.host, self._address.port) from error
        await self._server.start()
        logger.info("control service ultraserve.v1 on %s", self._address)

    async def stop(self) -> None:
        """End, with a moment for calls that are at work; idempotent."""
        await self._server.stop(_STOP_GRACE_S)


Context = grpc.aio.ServicerContext
