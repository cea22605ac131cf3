"""Control calls under vLLM's names, of the whole engine: sleep, wake up, pause, resume."""

import asyncio
from collections.abc import Awaitable, Sequence
from typing import Final, TypeVar

from google.protobuf.message import Message

from emulator.errors import ConfigError
from protos.ultraserve.v1 import control_pb2 as pb
from serving.policy.day_night.handover import CHANGING_HANDS
from serving.server.control.call_failure import not_now
from serving.server.control.control_messages import word_of
from serving.server.control.engine_admission import AdmissionClosing
from serving.server.control.engine_watch import EngineWatch
from serving.server.control.generic_service import answers
from serving.server.engine_call import EngineFailed, ServedEngine, ask, while_there
from serving.server.gateway.readiness import HOLDS_BACK, SLEEPS
from serving.wire.control_call import (
    GET_REST,
    PAUSE_GENERATION,
    RESUME_GENERATION,
    SLEEP,
    WAKE_UP,
    EngineSleepState,
    WatchReply,
    WatchRequest,
)

WordT = TypeVar("WordT", int, str)

LEVELS: Final = (1, 2)
"""vLLM's, its default first; level 0 leaves HBM as it is, and is a pause here."""

MODES: Final = ("abort", "wait", "keep")
"""The fate of running requests, vLLM's default first."""

TAGS: Final = ("weights", "kv_cache")


class SleepCalls:
    """Admission is closed while the engine sleeps."""

    _engine: ServedEngine
    _closing: AdmissionClosing
    _watch: EngineWatch
    _last_snapshot: "asyncio.Future[EngineSleepState] | None" = None

    @answers(SLEEP)
    async def sleep(self, request: pb.SleepRequest) -> EngineSleepState:
        """Release weights and KV from HBM."""
        level, mode = _known("level", request.level or LEVELS[0], LEVELS), mode_of(request)
        return await self._done(self._sleep(level, mode))

    async def _sleep(self, level: int, mode: str) -> None:
        """Refuse here: vLLM aborts or holds requests before it calls the engine."""
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

    @answers(WAKE_UP)
    async def wake_up(self, request: pb.WakeUpRequest) -> EngineSleepState:
        """Restore them."""
        tags = [_known("tags", tag, TAGS) for tag in request.tags]  # without any: everything
        return await self._done(self._engine.wake_up(tags or None))

    @answers(PAUSE_GENERATION)
    async def pause_generation(self, request: pb.PauseGenerationRequest) -> EngineSleepState:
        """Hold requests back."""
        pause = self._pause(mode_of(request), clear_cache=not request.keep_cache)
        return await self._done(pause)

    async def _pause(self, mode: str, *, clear_cache: bool) -> None:
        self._close(HOLDS_BACK)
        await self._engine.pause_generation(mode=mode, clear_cache=clear_cache)

    @answers(RESUME_GENERATION)
    async def resume_generation(self, request: pb.ResumeGenerationRequest) -> EngineSleepState:
        """Let requests go on."""
        del request
        return await self._done(self._engine.resume_generation())

    @answers(GET_REST)
    async def get_rest(self, request: pb.GetRestRequest) -> EngineSleepState:
        """Say whether the engine sleeps or pauses."""
        del request
        return await while_there(self._engine, sleep_state_of(self._engine))

    async def _done(self, call: Awaitable[object]) -> EngineSleepState:
        """The sleep state after `call`; a refusal has vLLM's words."""
        try:
            await while_there(self._engine, call)
            return await self._look()
        except EngineFailed as error:
            await self._look()
            raise not_now(str(error)) from error
        except asyncio.CancelledError:
            self._last_snapshot = asyncio.ensure_future(self._look())  # no caller waits for it
            raise

    async def _look(self) -> EngineSleepState:
        """The sleep state; closes admission while the engine sleeps or pauses."""
        state = await while_there(self._engine, sleep_state_of(self._engine))
        if state.sleeping or state.paused:
            self._close(SLEEPS if state.sleeping else HOLDS_BACK)
        else:
            self._close(None)
        self._watch.look_now()
        return state

    def _close(self, words: str | None) -> None:
        self._closing.sleep(words)
        self._watch.look_at_admission()


async def sleep_state_of(engine: ServedEngine) -> EngineSleepState:
    """Whether the engine sleeps or pauses now."""
    return EngineSleepState(sleeping=await engine.is_sleeping(), paused=await engine.is_paused())


def mode_of(request: Message) -> str:
    """The fate of running requests, by default vLLM's. Raises ConfigError."""
    word = word_of(request, "mode")
    return MODES[0] if word == "unspecified" else _known("mode", word, MODES)


def _known(field: str, value: WordT, words: Sequence[WordT]) -> WordT:
    if value not in words:
        raise ConfigError(field, value, " or ".join(map(str, words)))
    return value
