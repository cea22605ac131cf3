"""The control service's calls about recordings of steps."""

from typing import Any

import grpc.aio

from emulator.errors import ConfigError
from protos.ultraserve.v1 import control_pb2 as pb
from serving.server.control.control_messages import respond
from serving.server.control.engine_answer import answer
from serving.server.control.engine_sleep_state import ServedEngine
from serving.server.control.request_counts import counts
from serving.wire.control_call import (
    RecordingRequest,
    RecordingState,
    RecordRequest,
    ReliefReply,
    ReliefRequest,
    StepsReply,
    StepsRequest,
)


class RecordingCalls:
    """A part of the control service."""

    _engine: ServedEngine

    async def RecordSteps(  # noqa: N802  the name that the contract gives
        self, request: pb.RecordStepsRequest, context: "Context"
    ) -> pb.RecordStepsResponse:
        """Begin to record steps, or end it."""
        del context
        asked = RecordRequest(**counts(request, ("ends", "steps_max")))
        return respond(pb.RecordStepsResponse, await answer(self._engine, asked, RecordingState))

    async def GetRecording(  # noqa: N802  the name that the contract gives
        self, request: pb.GetRecordingRequest, context: "Context"
    ) -> pb.GetRecordingResponse:
        """Say how far a recording is."""
        del context
        asked = RecordingRequest(**counts(request, ("recording",)))
        return respond(pb.GetRecordingResponse, await answer(self._engine, asked, RecordingState))

    async def GetSteps(  # noqa: N802  the name that the contract gives
        self, request: pb.GetStepsRequest, context: "Context"
    ) -> pb.GetStepsResponse:
        """Show some of a recording's steps."""
        del context
        asked = StepsRequest(**counts(request, ("recording", "first_step")))
        reply = await answer(self._engine, asked, StepsReply)
        return respond(pb.GetStepsResponse, reply.page)

    async def GetRelief(  # noqa: N802  the name that the contract gives
        self, request: pb.GetReliefRequest, context: "Context"
    ) -> pb.GetReliefResponse:
        """Cost a sampled step again with things that are faster."""
        del context
        if not 1 < request.factor < float("inf"):
            raise ConfigError(field="factor", value=request.factor, expected="a number above 1")
        asked = ReliefRequest(**counts(request, ("recording", "sample")), factor=request.factor)
        reply = await answer(self._engine, asked, ReliefReply)
        return respond(pb.GetReliefResponse, reply.relief)


Context = grpc.aio.ServicerContext[Any, Any]
