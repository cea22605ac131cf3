"""Whether the server is there, and whether it takes requests: one answer for every protocol.

Alive: the engine's process is there. Ready: alive, the door is open, the engine neither sleeps nor
holds requests back, a rank is up, and the machine does not stand still for long. The engine is
asked at most once in LOOK_EVERY_S however many ask here; one that is busy with a step answers after
it, until then its last answer stands.
"""

import asyncio
import logging
import math
import time
from collections.abc import Callable
from typing import Final, Protocol

from serving.admission.refusal import Refused
from serving.controller.engine_call import Engine, EngineFailed, EngineGone, ask, while_there
from serving.metrics.control_call import TelemetryReply, TelemetryRequest

# Below "vllm", where the API's process has configured handlers; a name of our own prints nothing.
logger = logging.getLogger(f"vllm.{__name__}")

LOOK_EVERY_S: Final = 1.0
"""Wall seconds; a probe's period is seconds (Kubernetes: 10 by default)."""

ANSWER_WITHIN_S: Final = 0.8
"""Wall seconds that a probe waits for the engine; Kubernetes' probes wait one second by default."""

STALL_WALL_S_MIN: Final = 5.0
"""Wall seconds. A machine that stands still for less is ready: a request does better to wait."""

ENGINE_GONE: Final = "the engine is gone"
SLEEPS: Final = "the engine sleeps"
HOLDS_BACK: Final = "the engine holds requests back"
_NOT_ASKED: Final = "the engine has not answered yet"
_UNKNOWN: Final = "the engine's state could not be asked for"


class RestingEngine(Engine, Protocol):
    """What is asked of vLLM's AsyncLLM."""

    async def is_sleeping(self) -> bool:
        """Whether something of it is not in HBM."""

    async def is_paused(self) -> bool:
        """Whether it holds requests back."""


class Readiness:
    """Asked by probes of HTTP and by the health service of gRPC.

    `closed` is the door's: why it lets nobody in, None while it is open.
    """

    def __init__(
        self,
        engine: RestingEngine,
        closed: Callable[[], Refused | None],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._engine = engine
        self._closed = closed
        self._clock = clock
        self._engine_says: str | None = _NOT_ASKED
        self._looked_s = -float("inf")
        self._look: asyncio.Task[None] | None = None

    def not_alive(self) -> str | None:
        """Why the process should be started anew, in one line; None while it should not."""
        return ENGINE_GONE if self._engine.errored else None

    async def not_ready(self) -> str | None:
        """Why no request should be sent here now, in one line; None when one may be.

        Takes at most ANSWER_WITHIN_S.
        """
        if self._engine.errored:
            return ENGINE_GONE
        closed = self._closed()
        if closed is not None:
            return str(closed)
        await self._ask_now_and_then()
        return ENGINE_GONE if self._engine.errored else self._engine_says

    async def _ask_now_and_then(self) -> None:
        look = self._begin_look()
        if not look.done():
            # Whoever asks may go; the look goes on for the next one.
            await asyncio.wait({look}, timeout=ANSWER_WITHIN_S)

    def _begin_look(self) -> "asyncio.Task[None]":
        look = self._look
        stale = self._clock() - self._looked_s >= LOOK_EVERY_S
        if look is None or (look.done() and stale):
            self._looked_s = self._clock()
            look = self._look = asyncio.ensure_future(self._ask())
        return look

    async def _ask(self) -> None:
        try:
            self._engine_says = await self._why_engine_rests()
        except (EngineGone, EngineFailed) as error:
            self._engine_says = str(error)
        except Exception:
            # Whatever it was, nobody knows that the engine takes requests.
            if self._engine_says != _UNKNOWN:
                logger.exception(_UNKNOWN)
            self._engine_says = _UNKNOWN

    async def _why_engine_rests(self) -> str | None:
        if await while_there(self._engine, self._engine.is_sleeping()):
            return SLEEPS
        if await while_there(self._engine, self._engine.is_paused()):
            return HOLDS_BACK
        reply = await ask(self._engine, TelemetryRequest())
        assert isinstance(reply, TelemetryReply), reply
        stall = reply.telemetry.stall
        if stall is not None and stall.wall_left_s >= STALL_WALL_S_MIN:
            return f"{stall.reason}; {math.ceil(stall.wall_left_s)} s of wall time are left"
        return None if reply.telemetry.ranks_up else "no rank is up"
