"""The control service's streams: telemetry and events."""

from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

import grpc.aio

from protos.ultraserve.v1 import control_pb2 as pb
from serving.server.control.control_messages import respond
from serving.server.control.engine_watch import EngineWatch


class WatchCalls:
    """A part of the control service."""

    _watch: EngineWatch

    async def WatchTelemetry(  # noqa: N802  the name that the contract gives
        self, request: pb.WatchTelemetryRequest, context: "Context"
    ) -> AsyncIterator[pb.WatchTelemetryResponse]:
        """Show the engine again and again."""
        del context
        async with aclosing(self._watch.telemetry(request.interval_s)) as looks:
            async for look, skipped in looks:
                yield respond(pb.WatchTelemetryResponse, look, skipped=skipped)

    async def WatchEvents(  # noqa: N802  the name that the contract gives
        self, request: pb.WatchEventsRequest, context: "Context"
    ) -> AsyncIterator[pb.WatchEventsResponse]:
        """Tell what happens."""
        del context
        after = request.after if request.HasField("after") else None
        run = request.run if request.HasField("run") else None
        async with aclosing(self._watch.events(after, run)) as events:
            async for event, lost in events:
                yield respond(pb.WatchEventsResponse, event, lost=lost, run=self._watch.run)


Context = grpc.aio.ServicerContext[Any, Any]
