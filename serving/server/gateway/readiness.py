"""Liveness and readiness: one answer for every protocol.

Alive: the engine's process is there. Ready: alive, the gateway is open, the engine neither sleeps
nor is paused, the machine has no long stall, and a rank is up. The engine is asked at most once in
LOOK_EVERY_S; while it is busy with a step, its last answer stands.

Requests are refused for the same reasons, and wait for the engine only where its newest snapshot or
its last answer, at most LOOK_EVERY_S older than the request before, speaks against it.
"""

import asyncio
import logging
import math
import time
from collections.abc import Callable
from typing import Final, Protocol

from serving.policy.admission.refusal import RateState, RefusalReason, Refused
from serving.server.engine_call import Engine, EngineFailed, EngineGone, ask, while_there
from serving.wire.control_call import TelemetryReply, TelemetryRequest

# Below "vllm", where the API's process has configured handlers; a name of our own prints nothing.
logger = logging.getLogger(f"vllm.{__name__}")

LOOK_EVERY_S: Final = 1.0
"""Wall seconds; a probe's period is longer (Kubernetes: 10 s by default)."""

ANSWER_WITHIN_S: Final = 0.8
"""Wall seconds that a probe waits for the engine; Kubernetes' default is one second."""

STALL_S_MIN: Final = 5.0
"""Emulated seconds, so that the same requests are served at any dilation. With a shorter stall the
machine is ready: a request does better to wait.
"""

ENGINE_GONE: Final = "the engine is gone"
SLEEPS: Final = "the engine sleeps"
HOLDS_BACK: Final = "the engine holds requests back"
NO_RANK_UP: Final = "no rank is up"

ENGINE_RETRY_S: Final = 30.0
"""Assumed: a supervisor and a start together; a small model's start takes 25 s of it."""

REST_RETRY_S: Final = 5.0
"""Wall seconds that clients are told to wait by default; a gateway looks for another server."""

_NOT_ASKED: Final = "the engine has not answered yet"
_UNKNOWN: Final = "the engine's state could not be asked for"


class RestingEngine(Engine, Protocol):
    """The part of vLLM's AsyncLLM that readiness needs."""

    async def is_sleeping(self) -> bool:
        """Whether part of it is not in HBM."""

    async def is_paused(self) -> bool:
        """Whether it holds requests back."""


class ServerReadiness(Protocol):
    """Whether a server lives and takes requests, as its gateway asks."""

    def not_alive(self) -> str | None:
        """Why the process should be restarted, in one line, or None."""

    async def not_ready(self) -> str | None:
        """Why no request should be sent here now, in one line, or None."""

    async def refusal(self) -> Refused | None:
        """A new refusal of a request that comes now, or None."""

    def failure(self) -> Refused | None:
        """Why an admitted request has failed, if known."""


class Readiness:
    """Answers probes of HTTP and the health service of gRPC.

    `closed` is the gateway's refusal, None while it is open. `seats` is the engine's room in
    sequences by its newest snapshot, 0 when no rank is up.
    """

    def __init__(
        self,
        engine: RestingEngine,
        closed: Callable[[], Refused | None],
        *,
        seats: Callable[[], int] = lambda: 1,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._engine = engine
        self._closed = closed
        self._seats = seats
        self._engine_refuses: Refused | None = None
        self._clock = clock
        self._engine_says: str | None = _NOT_ASKED
        self._looked_s = -float("inf")
        self._look: asyncio.Task[None] | None = None

    def not_alive(self) -> str | None:
        """Why the process should be restarted, in one line, or None."""
        return ENGINE_GONE if self._engine.errored else None

    async def not_ready(self) -> str | None:
        """Why no request should be sent here now, in one line, or None; within ANSWER_WITHIN_S."""
        if self._engine.errored:
            return ENGINE_GONE
        closed = self._closed()
        if closed is not None:
            return str(closed)
        await self._ask_now_and_then()
        return ENGINE_GONE if self._engine.errored else self._engine_says

    async def refusal(self) -> Refused | None:
        """A new refusal of a request that comes now, for the engine's reasons, or None.

        Waits for the engine where its last answer or newest snapshot, which may be old, says no.
        """
        if not self._engine.errored:
            self._begin_snapshot()
            if self._engine_refuses is not None or self._seats() == 0:
                await self._ask_now_and_then()
        if self._engine.errored:
            return engine_gone()
        refused = self._engine_refuses
        return None if refused is None else refused.again(RateState())

    def failure(self) -> Refused | None:
        """Why an admitted request has failed, if known; None: for a reason of its own."""
        if self._engine.errored:
            return engine_gone()
        return _no_rank_up() if self._seats() == 0 else None

    async def _ask_now_and_then(self) -> None:
        look = self._begin_snapshot()
        if not look.done():
            # A caller may go; the look goes on for the next one.
            await asyncio.wait({look}, timeout=ANSWER_WITHIN_S)

    def _begin_snapshot(self) -> "asyncio.Task[None]":
        look = self._look
        stale = self._clock() - self._looked_s >= LOOK_EVERY_S
        if look is None or (look.done() and stale):
            self._looked_s = self._clock()
            look = self._look = asyncio.ensure_future(self._ask())
        return look

    async def _ask(self) -> None:
        refused = None
        try:
            refused = await self._why_engine_rests()
            self._engine_says = None if refused is None else str(refused)
        except (EngineGone, EngineFailed) as error:
            self._engine_says = str(error)
        except Exception:
            # Whatever it was, the engine may not take requests.
            if self._engine_says != _UNKNOWN:
                logger.exception(_UNKNOWN)
            self._engine_says = _UNKNOWN
        self._engine_refuses = refused

    async def _why_engine_rests(self) -> Refused | None:
        if await while_there(self._engine, self._engine.is_sleeping()):
            return refused(RefusalReason.RESTING, SLEEPS, REST_RETRY_S)
        if await while_there(self._engine, self._engine.is_paused()):
            return refused(RefusalReason.RESTING, HOLDS_BACK, REST_RETRY_S)
        reply = await ask(self._engine, TelemetryRequest())
        assert isinstance(reply, TelemetryReply), reply
        stall = reply.telemetry.stall
        if stall is not None and stall.left_s >= STALL_S_MIN:
            left_s = math.ceil(stall.wall_left_s)
            message = f"{stall.reason}; {left_s} s of wall time are left"
            return refused(RefusalReason.STALLED, message, left_s)
        return None if reply.telemetry.ranks_up else _no_rank_up()


def engine_gone() -> Refused:
    """The refusal, and failure, of requests when the engine has ended."""
    return refused(RefusalReason.ENGINE_GONE, ENGINE_GONE, ENGINE_RETRY_S)


def _no_rank_up() -> Refused:
    return refused(RefusalReason.NO_RANK_UP, NO_RANK_UP, REST_RETRY_S)


def refused(reason: RefusalReason, message: str, retry_after_s: float) -> Refused:
    """A refusal of a request that no limit refuses."""
    return Refused(reason, message, retry_after_s=retry_after_s, rate=RateState())
