"""The control service's calls about who may enter, and what the engine remembers of prefixes."""

from typing import Any, Final

import grpc.aio

from emulator.errors import ConfigError
from protos.ultraserve.v1 import control_pb2 as pb
from serving.server.control.admission_closing import RETRY_S, DoorClosing
from serving.server.control.admission_report import door_report
from serving.server.control.call_failure import not_now
from serving.server.control.control_messages import respond
from serving.server.control.engine_admission import EngineDoor
from serving.server.control.engine_sleep_state import ServedEngine
from serving.server.control.engine_watch import EngineWatch
from serving.server.engine_call import while_there

DRAINING: Final = "the server is drained: no new requests"
RETRY_S_MAX: Final = 86_400.0
REASON_LENGTH_MAX: Final = 200


class AdmissionCalls:
    """A part of the control service; `_door` is None where requests pass none."""

    _engine: ServedEngine
    _door: EngineDoor | None
    _closing: DoorClosing
    _watch: EngineWatch

    async def GetAdmission(  # noqa: N802  the name that the contract gives
        self, request: pb.GetAdmissionRequest, context: "Context"
    ) -> pb.GetAdmissionResponse:
        """Say who is inside, who waits, and what was refused."""
        del request, context
        return respond(pb.GetAdmissionResponse, door_report(self._the_door()))

    async def DrainEngine(  # noqa: N802  the name that the contract gives
        self, request: pb.DrainEngineRequest, context: "Context"
    ) -> pb.DrainEngineResponse:
        """Close the door."""
        del context
        if len(request.reason) > REASON_LENGTH_MAX:
            expected = f"at most {REASON_LENGTH_MAX} characters"
            raise ConfigError(field="reason", value=f"{request.reason[:20]}...", expected=expected)
        if not 0 <= request.retry_after_s <= RETRY_S_MAX:
            expected = f"0 to {RETRY_S_MAX:,.0f} seconds"
            raise ConfigError(field="retry_after_s", value=request.retry_after_s, expected=expected)
        door = self._the_door()
        words = " ".join(request.reason.split()) or DRAINING
        self._closing.drain(door, words, request.retry_after_s or RETRY_S)
        self._watch.look_at_door()
        return respond(pb.DrainEngineResponse, door_report(door))

    async def UndrainEngine(  # noqa: N802  the name that the contract gives
        self, request: pb.UndrainEngineRequest, context: "Context"
    ) -> pb.UndrainEngineResponse:
        """Open it again."""
        del request, context
        door = self._the_door()
        self._closing.undrain(door)
        self._watch.look_at_door()
        return respond(pb.UndrainEngineResponse, door_report(door))

    async def ResetPrefixCache(  # noqa: N802  the name that the contract gives
        self, request: pb.ResetPrefixCacheRequest, context: "Context"
    ) -> pb.ResetPrefixCacheResponse:
        """Forget prefixes."""
        del context
        reset = self._engine.reset_prefix_cache(request.reset_running_requests)
        if not await while_there(self._engine, reset):
            raise not_now("running requests hold blocks of the prefix cache")
        return pb.ResetPrefixCacheResponse()

    def _the_door(self) -> EngineDoor:
        if self._door is None:
            raise not_now("requests of this server pass no door")
        return self._door


Context = grpc.aio.ServicerContext[Any, Any]
