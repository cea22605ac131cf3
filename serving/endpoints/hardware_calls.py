"""The control service's calls about everything that a dashboard shows."""

from typing import Any

import grpc.aio

from protos.ultraserve.v1 import control_pb2 as pb
from serving.endpoints.control_messages import respond
from serving.endpoints.engine_answer import answer
from serving.endpoints.engine_rest import ServedEngine
from serving.metrics.control_call import (
    ExpertLoadReply,
    ExpertLoadRequest,
    HardwareReply,
    HardwareRequest,
)


class HardwareCalls:
    """A part of the control service."""

    _engine: ServedEngine

    async def GetHardware(  # noqa: N802  the name that the contract gives
        self, request: pb.GetHardwareRequest, context: "Context"
    ) -> pb.GetHardwareResponse:
        """Show everything in one look."""
        del request, context
        reply = await answer(self._engine, HardwareRequest(), HardwareReply)
        return respond(pb.GetHardwareResponse, reply.report)

    async def GetExpertLoad(  # noqa: N802  the name that the contract gives
        self, request: pb.GetExpertLoadRequest, context: "Context"
    ) -> pb.GetExpertLoadResponse:
        """Show how often experts are chosen."""
        del request, context
        reply = await answer(self._engine, ExpertLoadRequest(), ExpertLoadReply)
        return respond(pb.GetExpertLoadResponse, reply.load)


Context = grpc.aio.ServicerContext[Any, Any]
