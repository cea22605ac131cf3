"""The control service's streams: telemetry and events."""

from collections.abc import AsyncIterator
from contextlib import aclosing

from protos.ultraserve.v1 import control_pb2 as pb
from serving.server.control.control_messages import respond
from serving.server.control.engine_watch import EngineWatch
from serving.server.control.generic_service import streams


class WatchCalls:
    """A part of the control service."""

    _watch: EngineWatch

    @streams("WatchTelemetry")
    async def watch_telemetry(
        self, request: pb.WatchTelemetryRequest
    ) -> AsyncIterator[pb.WatchTelemetryResponse]:
        """Show the engine again and again."""
        async with aclosing(self._watch.telemetry(request.interval_s)) as looks:
            async for look, skipped in looks:
                yield respond(pb.WatchTelemetryResponse, look, skipped=skipped)

    @streams("WatchEvents")
    async def watch_events(
        self, request: pb.WatchEventsRequest
    ) -> AsyncIterator[pb.WatchEventsResponse]:
        """Tell what happens."""
        after = request.after if request.HasField("after") else None
        run = request.run if request.HasField("run") else None
        async with aclosing(self._watch.events(after, run)) as events:
            async for event, lost in events:
                yield respond(pb.WatchEventsResponse, event, lost=lost, run=self._watch.run)
