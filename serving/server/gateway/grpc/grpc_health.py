"""`grpc.health.v1` by the readiness of HTTP's probes.

The empty service name is liveness, for a supervisor that restarts; the engine's is readiness, for a
load balancer. A watch reports a change within _LOOK_EVERY_S.
"""

import asyncio
import contextlib
from typing import Any, Final

import grpc
from grpc_health.v1 import health, health_pb2  # type: ignore[import-untyped]

from serving.server.gateway.grpc.rpc_errors import CallRefused, RpcFailure, exhausted
from serving.server.gateway.readiness import Readiness

LIVE: Final = ""
READY: Final = "vllm.grpc.engine.VllmEngine"

WATCHERS_MAX: Final = 128
"""Watches at a time; one more ends the oldest. Few of the port's connections: none needs a key."""

WATCH_WALL_S: Final = 300.0
"""Time after which a watch ends; its client may watch again."""

_LOOK_EVERY_S: Final = 0.2
"""Interval of checks while a watch is open."""

_WATCH_RETRY_S: Final = 1.0

_SERVING: Final = health_pb2.HealthCheckResponse.SERVING
_NOT_SERVING: Final = health_pb2.HealthCheckResponse.NOT_SERVING


class GrpcHealth(health.aio.HealthServicer):  # type: ignore[misc]
    """grpcio's health service, kept up to date while it is used."""

    def __init__(self, readiness: Readiness) -> None:
        super().__init__()
        self._readiness = readiness
        self._watches: dict[asyncio.Timeout, None] = {}  # the oldest first
        self._looking: asyncio.Task[None] | None = None

    async def Check(self, request: Any, context: Any) -> Any:
        """The present state; NOT_FOUND for an unknown service."""
        await self._look()
        return await super().Check(request, context)

    async def List(self, request: Any, context: Any) -> Any:
        """The present state of every service, which grpcio's own lacks."""
        del request, context
        await self._look()
        statuses = {
            name: health_pb2.HealthCheckResponse(status=status)
            for name, status in self._server_status.items()
        }
        return health_pb2.HealthListResponse(statuses=statuses)

    async def Watch(self, request: Any, context: Any) -> None:
        """Send the present state and each change; CallRefused at its end, or to make room."""
        if len(self._watches) >= WATCHERS_MAX:
            self._end_oldest()
        until_s = asyncio.get_running_loop().time() + WATCH_WALL_S
        try:
            async with asyncio.timeout_at(until_s) as time:
                self._watches[time] = None
                await self._look()
                if self._looking is None:
                    self._looking = asyncio.create_task(self._keep_looking())
                await super().Watch(request, context)
        except TimeoutError:
            if not time.expired():
                raise
            raise CallRefused(_OVER if time.when() == until_s else _CROWDED) from None
        finally:
            self._watches.pop(time, None)
            if not self._watches:
                await self._stop_looking()

    def _end_oldest(self) -> None:
        oldest = next(iter(self._watches))
        del self._watches[oldest]
        if not oldest.expired():
            oldest.reschedule(0.0)

    async def stop(self) -> None:
        """Report all as not serving, to watchers too; idempotent."""
        await self._stop_looking()
        await self.enter_graceful_shutdown()

    async def _stop_looking(self) -> None:
        looking, self._looking = self._looking, None
        if looking is not None:
            looking.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await looking

    async def _keep_looking(self) -> None:
        while True:
            await asyncio.sleep(_LOOK_EVERY_S)
            await self._look()

    async def _look(self) -> None:
        reasons = {LIVE: self._readiness.not_alive(), READY: await self._readiness.not_ready()}
        for name, reason in reasons.items():
            status = _SERVING if reason is None else _NOT_SERVING
            if self._server_status.get(name) != status:
                await self.set(name, status)


_CROWDED: Final = exhausted(
    "WATCHERS", f"{WATCHERS_MAX} later calls watch health", retry_after_s=_WATCH_RETRY_S
)

_OVER: Final = RpcFailure(
    grpc.StatusCode.UNAVAILABLE,
    "WATCH_TIME",
    f"health was watched for {WATCH_WALL_S:g} s; watch it again",
    retry_after_s=_WATCH_RETRY_S,
)
