"""The control service's calls in vLLM's own words: sleep, wake up, pause, resume."""

from collections.abc import Awaitable
from typing import Any, Final

import grpc
import grpc.aio

from emulator.errors import ConfigError
from protos.ultraserve.v1 import control_pb2 as pb
from serving.controller.engine_call import EngineFailed, EngineGone, ask, while_there
from serving.daynight.handover import Phase
from serving.endpoints.control_messages import to_message
from serving.endpoints.engine_rest import (
    ServedEngine,
    checked_level,
    checked_mode,
    checked_tags,
    rest_of,
)
from serving.metrics.control_call import WatchReply, WatchRequest

_CHANGING_HANDS: Final = (Phase.DRAINING, Phase.RESTORING)


class RestCalls:
    """A part of the control service."""

    _engine: ServedEngine

    async def Sleep(  # noqa: N802  the name that the contract gives
        self, request: pb.SleepRequest, context: "Context[Any, Any]"
    ) -> pb.EngineRest:
        """Let weights and KV leave HBM."""
        try:
            level, mode = checked_level(request.level), checked_mode(request.mode)
        except ConfigError as error:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        return await self._rest(self._sleep(level, mode), context)

    async def _sleep(self, level: int, mode: str) -> None:
        """Refuse before vLLM aborts or holds requests: the engine itself is asked only then."""
        watched = await ask(self._engine, WatchRequest())
        moving = [
            lease
            for lease in (watched.leases if isinstance(watched, WatchReply) else ())
            if lease.phase in _CHANGING_HANDS
        ]
        if level and moving:
            lease = moving[0]
            raise EngineFailed(
                f"lease {lease.number} is {lease.phase}: sleep when its hand-over is over"
            )
        await self._engine.sleep(level, mode)

    async def WakeUp(  # noqa: N802  the name that the contract gives
        self, request: pb.WakeUpRequest, context: "Context[Any, Any]"
    ) -> pb.EngineRest:
        """Let them come back."""
        try:
            tags = checked_tags(request.tags)
        except ConfigError as error:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        return await self._rest(self._engine.wake_up(tags), context)

    async def PauseGeneration(  # noqa: N802  the name that the contract gives
        self, request: pb.PauseGenerationRequest, context: "Context[Any, Any]"
    ) -> pb.EngineRest:
        """Hold requests back."""
        try:
            mode = checked_mode(request.mode)
        except ConfigError as error:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        clear = not request.keep_cache
        return await self._rest(
            self._engine.pause_generation(mode=mode, clear_cache=clear), context
        )

    async def ResumeGeneration(  # noqa: N802  the name that the contract gives
        self, request: pb.ResumeGenerationRequest, context: "Context[Any, Any]"
    ) -> pb.EngineRest:
        """Let requests go on."""
        del request
        return await self._rest(self._engine.resume_generation(), context)

    async def GetRest(  # noqa: N802  the name that the contract gives
        self, request: pb.GetRestRequest, context: "Context[Any, Any]"
    ) -> pb.EngineRest:
        """Say whether the engine sleeps or pauses."""
        del request
        return await self._rest(_nothing(), context)

    async def _rest(self, call: Awaitable[object], context: "Context[Any, Any]") -> pb.EngineRest:
        """How the engine rests once `call` is done; a call that vLLM refuses ends in its words."""
        try:
            await while_there(self._engine, call)
            rest = await while_there(self._engine, rest_of(self._engine))
        except EngineGone as error:
            await context.abort(grpc.StatusCode.UNAVAILABLE, str(error))
        except EngineFailed as error:
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(error))
        return to_message(rest, pb.EngineRest)


async def _nothing() -> None:
    """Only look."""


Context = grpc.aio.ServicerContext
