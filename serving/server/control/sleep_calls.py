"""The control service's calls in vLLM's own words: sleep, wake up, pause, resume."""

import asyncio
from collections.abc import Awaitable
from typing import Any

import grpc.aio
from google.protobuf.message import Message

from emulator.errors import ConfigError
from protos.ultraserve.v1 import control_pb2 as pb
from serving.policy.day_night.handover import CHANGING_HANDS
from serving.server.control.admission_closing import DoorClosing
from serving.server.control.call_failure import not_now
from serving.server.control.control_messages import respond, word_of
from serving.server.control.engine_sleep_state import (
    MODES,
    EngineRest,
    ServedEngine,
    checked_level,
    checked_tags,
    rest_of,
)
from serving.server.control.engine_watch import EngineWatch
from serving.server.engine_call import EngineFailed, ask, while_there
from serving.server.gateway.readiness import HOLDS_BACK, SLEEPS
from serving.wire.control_call import WatchReply, WatchRequest


class RestCalls:
    """A part of the control service.

    The door is closed while the engine rests: who entered would wait until somebody wakes it up.
    """

    _engine: ServedEngine
    _closing: DoorClosing
    _watch: EngineWatch
    _last_look: "asyncio.Future[EngineRest] | None" = None

    async def Sleep(  # noqa: N802  the name that the contract gives
        self, request: pb.SleepRequest, context: "Context"
    ) -> pb.SleepResponse:
        """Let weights and KV leave HBM."""
        del context
        level, mode = checked_level(request.level), mode_of(request)
        return respond(pb.SleepResponse, await self._rest(self._sleep(level, mode)))

    async def _sleep(self, level: int, mode: str) -> None:
        """Refuse before vLLM aborts or holds requests: the engine itself is asked only then."""
        watched = await ask(self._engine, WatchRequest())
        moving = [
            lease
            for lease in (watched.leases if isinstance(watched, WatchReply) else ())
            if lease.phase in CHANGING_HANDS
        ]
        if moving:
            lease = moving[0]
            raise EngineFailed(
                f"lease {lease.number} is {lease.phase}: sleep when its hand-over is over"
            )
        self._close(SLEEPS)
        await self._engine.sleep(level, mode)

    async def WakeUp(  # noqa: N802  the name that the contract gives
        self, request: pb.WakeUpRequest, context: "Context"
    ) -> pb.WakeUpResponse:
        """Let them come back."""
        del context
        tags = checked_tags(request.tags)
        return respond(pb.WakeUpResponse, await self._rest(self._engine.wake_up(tags)))

    async def PauseGeneration(  # noqa: N802  the name that the contract gives
        self, request: pb.PauseGenerationRequest, context: "Context"
    ) -> pb.PauseGenerationResponse:
        """Hold requests back."""
        del context
        pause = self._pause(mode_of(request), clear_cache=not request.keep_cache)
        return respond(pb.PauseGenerationResponse, await self._rest(pause))

    async def _pause(self, mode: str, *, clear_cache: bool) -> None:
        self._close(HOLDS_BACK)
        await self._engine.pause_generation(mode=mode, clear_cache=clear_cache)

    async def ResumeGeneration(  # noqa: N802  the name that the contract gives
        self, request: pb.ResumeGenerationRequest, context: "Context"
    ) -> pb.ResumeGenerationResponse:
        """Let requests go on."""
        del request, context
        rest = await self._rest(self._engine.resume_generation())
        return respond(pb.ResumeGenerationResponse, rest)

    async def GetRest(  # noqa: N802  the name that the contract gives
        self, request: pb.GetRestRequest, context: "Context"
    ) -> pb.GetRestResponse:
        """Say whether the engine sleeps or pauses."""
        del request, context
        return respond(pb.GetRestResponse, await while_there(self._engine, rest_of(self._engine)))

    async def _rest(self, call: Awaitable[object]) -> EngineRest:
        """How the engine rests once `call` is done; what vLLM refuses is told in its words."""
        try:
            await while_there(self._engine, call)
            return await self._look()
        except EngineFailed as error:
            await self._look()
            raise not_now(str(error)) from error
        except asyncio.CancelledError:
            self._last_look = asyncio.ensure_future(self._look())  # nobody waits for it
            raise

    async def _look(self) -> EngineRest:
        """How the engine rests; the door is closed while it does."""
        rest = await while_there(self._engine, rest_of(self._engine))
        if rest.sleeping or rest.paused:
            self._close(SLEEPS if rest.sleeping else HOLDS_BACK)
        else:
            self._close(None)
        self._watch.look_now()
        return rest

    def _close(self, words: str | None) -> None:
        self._closing.rest(words)
        self._watch.look_at_door()


def mode_of(request: Message) -> str:
    """What is to become of running requests, vLLM's default when nothing is said.

    Raises ConfigError.
    """
    word = word_of(request, "mode")
    if word == "unspecified":
        return MODES[0]
    if word not in MODES:
        raise ConfigError(field="mode", value=word, expected=" or ".join(MODES))
    return word


Context = grpc.aio.ServicerContext[Any, Any]
