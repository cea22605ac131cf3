"""The control service's calls about everything that a dashboard shows."""

from typing import Any, Final

import grpc.aio

from protos.ultraserve.v1 import control_pb2 as pb
from serving.server.control.action_ledger import ANSWER_WALL_S_MAX
from serving.server.control.control_messages import respond
from serving.server.control.last_replies import LastReplies
from serving.server.gateway.snapshot_poller import SnapshotPoller
from serving.wire.control_call import ExpertLoadReply, ExpertLoadRequest

_MAX_AGE_S: Final = 0.0
"""Who asks twice is shown two looks; those who ask at the same time share one."""


class HardwareCalls:
    """A part of the control service."""

    _replies: LastReplies
    _hardware: SnapshotPoller

    async def GetHardware(  # noqa: N802  the name that the contract gives
        self, request: pb.GetHardwareRequest, context: "Context"
    ) -> pb.GetHardwareResponse:
        """Show everything in one look, which others may have asked for a moment ago."""
        del request, context
        look = await self._hardware.fresh(_MAX_AGE_S, ANSWER_WALL_S_MAX)
        return respond(pb.GetHardwareResponse, look.report)

    async def GetExpertLoad(  # noqa: N802  the name that the contract gives
        self, request: pb.GetExpertLoadRequest, context: "Context"
    ) -> pb.GetExpertLoadResponse:
        """Show how often experts are chosen."""
        del request, context
        reply, _ = await self._replies.reply(ExpertLoadRequest(), ExpertLoadReply)
        return respond(pb.GetExpertLoadResponse, reply.load)


Context = grpc.aio.ServicerContext[Any, Any]
