"""Graceful shutdown: after the running requests at a signal, at once when the engine is gone.

At SIGTERM new requests are refused, probes fail, and admitted requests have a bounded time; then
the rest is aborted, the engine ends, and vLLM's server returns. SIGINT gives no time; a second
signal stops waiting. The signal handler bounds the end, as a stuck loop ends nothing: the process
then exits as it is, and the engine's process clears up. A lost engine has its own exit code.
"""

import asyncio
import logging
import signal
import time
from multiprocessing.process import BaseProcess
from types import FrameType
from typing import Any, Final

from serving.plugin.api_workers import api_workers
from serving.plugin.engine_shutdown import abort_requests, end_engine, fail_requests, leave_signals
from serving.plugin.native_front import native_front
from serving.policy.admission.refusal import RefusalReason
from serving.process.server_shutdown import server_shutdown
from serving.server.gateway.admission_controller import AdmissionController
from serving.server.gateway.permits.permit_port import PermitPort

logger = logging.getLogger(f"vllm.{__name__}")  # below a name that the server's process shows

_TOLD_WALL_S: Final = 2.0
"""Time for ended requests to tell their clients (assumed: streams write at once)."""

_CLOSE_WALL_S: Final = 3
"""Time until connections whose clients do not read are cut (assumed); whole seconds, for
uvicorn."""

_ENGINE_WALL_S: Final = 8.0
"""Time to end chips and Ray (assumed; a tray's are gone in half a second, the rest is Python's)."""

_SERVICES_WALL_S: Final = 27.0
"""Time for other services: a training job has 20 s to save and 5 s to go; 2 s are spare."""

_BOUND_WALL_S: Final = _TOLD_WALL_S + _CLOSE_WALL_S + _SERVICES_WALL_S + _ENGINE_WALL_S
"""Upper bound after the requests' own time, not a wait."""

_SECOND_WALL_S: Final = 3.0
"""After a second signal."""

_TWICE: Final = 2

_LOOK_WALL_S: Final = 0.2
"""Interval of checks of the engine, each an attribute access."""


class GracefulShutdown:
    """Shutdown service, stopped after all others but the port of permits.

    `engine` is vLLM's AsyncLLM, `server` the uvicorn server, `drain_wall_s_max` the time of running
    requests, `others` the server's other API processes. For the main thread's loop.
    """

    def __init__(
        self,
        engine: Any,
        server: Any,
        admission: AdmissionController,
        *,
        drain_wall_s_max: float,
        others: PermitPort | None = None,
    ) -> None:
        self._engine = engine
        self._others = others
        self._workers = () if others is None else api_workers()
        self._front = native_front()
        self._server = server
        self._admission = admission
        self._drain_wall_s_max = drain_wall_s_max
        self._process = server_shutdown.get(None)
        self._signals = 0
        self._caught = 0
        self._ending: asyncio.Task[None] | None = None
        self._watch: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Take the signals over from vLLM's server and the engine."""
        loop = asyncio.get_running_loop()
        await leave_signals(self._engine)
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._hear, number)
            # The loop is woken by the signal itself, and has its own handler do nothing; this one
            # runs wherever the main thread is. The loop's end takes both back.
            signal.signal(number, self._bound)
        self._watch = loop.create_task(self._watch_others())
        for worker in self._workers:
            loop.add_reader(worker.sentinel, self._lost, worker)

    async def stop(self) -> None:
        """End the engine; the process's end stays bounded. Idempotent."""
        if self._watch is None:
            return
        self._watch.cancel()
        self._watch = None
        for worker in self._workers:
            asyncio.get_running_loop().remove_reader(worker.sentinel)
        if self._ending is None and self._engine.errored:  # vLLM's server was faster to see it
            self._end_with(1)
        self._end_within(_ENGINE_WALL_S + _SECOND_WALL_S)
        await end_engine(self._engine, 0.0 if self._signals >= _TWICE else _ENGINE_WALL_S)

    def _bound(self, number: int, frame: FrameType | None) -> None:
        """Bound the process's end and no more: it runs in a signal handler, and does not log."""
        del frame
        self._caught += 1
        if self._caught >= _TWICE:
            self._end_with(128 + number)
            self._end_within(_SECOND_WALL_S)
        elif self._ending is None:
            self._end_within(self._wait_wall_s(number) + _BOUND_WALL_S)

    def _wait_wall_s(self, number: int) -> float:
        return self._drain_wall_s_max if number == signal.SIGTERM else 0.0

    def _hear(self, number: signal.Signals) -> None:
        self._signals += 1
        if self._signals >= _TWICE:
            self._end_now(number)
        elif self._ending is None:
            wait_wall_s = self._wait_wall_s(number)
            logger.info("%s: the server ends, its requests have %g s", number.name, wait_wall_s)
            self._begin(wait_wall_s, "the server is ending")

    def _begin(self, wait_wall_s: float, message: str) -> None:
        self._admission.close(RefusalReason.DRAINING, message, retry_after_s=max(wait_wall_s, 1.0))
        if self._front is not None:
            self._front.drain()
        if self._caught < _TWICE:  # the second's bound is shorter, and may be there already
            self._end_within(wait_wall_s + _BOUND_WALL_S)
        self._ending = asyncio.get_running_loop().create_task(self._end(wait_wall_s))

    async def _end(self, wait_wall_s: float) -> None:
        try:
            await self._empty(wait_wall_s)
        finally:  # whatever happens to the requests, the server ends
            self._leave(_CLOSE_WALL_S if self._signals < _TWICE else 0)

    async def _empty(self, wait_wall_s: float) -> None:
        """Wait until no request is inside; abort the rest, or fail it if the engine is gone."""
        if await self._is_empty(wait_wall_s):
            return
        inside = self._admission.in_flight
        if self._front is not None and not self._front.has_ended:
            logger.warning("the front has not ended, and is cut with its requests")
        if self._others is not None:
            self._others.end_requests(engine_is_gone=self._engine.errored)
        if self._engine.errored:
            fail_requests(self._engine)
            logger.warning("%d requests have failed", inside)
        else:
            await abort_requests(self._engine)
            logger.warning("%d requests are aborted", inside)
        await self._admission.empty(_TOLD_WALL_S)

    async def _is_empty(self, wait_wall_s: float) -> bool:
        end_s = time.monotonic() + wait_wall_s
        while not self._engine.errored:
            left_s = end_s - time.monotonic()
            if await self._admission.empty(max(0.0, min(left_s, _LOOK_WALL_S))):
                if self._front is None or self._front.has_ended:
                    return True
                await asyncio.sleep(max(0.0, min(left_s, _LOOK_WALL_S)))
            if left_s <= 0:
                return False
        return False

    def _end_now(self, number: signal.Signals) -> None:
        logger.warning("%s again: the server ends now", number.name)
        self._end_with(128 + number)
        self._end_within(_SECOND_WALL_S)
        if self._ending is not None:
            self._ending.cancel()
        self._leave(0)

    def _leave(self, close_wall_s: int) -> None:
        if self._others is not None:
            self._others.end_processes(close_wall_s)
        if self._front is not None:
            self._front.end()
        self._server.config.timeout_graceful_shutdown = close_wall_s
        self._server.should_exit = True

    async def _watch_others(self) -> None:
        while not self._engine.errored:
            await asyncio.sleep(_LOOK_WALL_S)
            if self._ending is None and self._front is not None and self._front.has_ended:
                self._fail("the front is gone", self._drain_wall_s_max)
        if self._ending is not None:
            return  # `_empty` sees it
        self._fail("the engine is gone", 0.0)

    def _lost(self, worker: BaseProcess) -> None:
        """A process beside this one has ended; its streams have, and its permits are back."""
        asyncio.get_running_loop().remove_reader(worker.sentinel)
        if self._ending is None:
            self._fail(f"API process {worker.name} is gone", self._drain_wall_s_max)

    def _fail(self, what: str, wait_wall_s: float) -> None:
        logger.error("%s, and the server ends", what)
        self._end_with(1)
        self._begin(wait_wall_s, what)

    def _end_within(self, wall_s: float) -> None:
        if self._process is not None:
            self._process.within(wall_s)

    def _end_with(self, code: int) -> None:
        if self._process is not None:
            self._process.code = code
