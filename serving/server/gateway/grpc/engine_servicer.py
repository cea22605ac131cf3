"""`vllm.grpc.engine.VllmEngine` as published, corrected for an engine of several ranks.

The published servicer takes an engine core for one rank. Here one core schedules all ranks, each
with its own seats and KV pool, so figures of room are multiplied. Fields of the present state,
which it leaves empty, are filled in.
"""

import time
from collections.abc import Callable
from contextlib import aclosing
from typing import Any, Final

from smg_grpc_servicer.vllm.servicer import VllmEngineServicer  # type: ignore[import-untyped]

from serving.server.gateway.admission_controller import AdmissionController
from serving.server.gateway.readiness import Readiness
from serving.settings import Settings

_SERVER_TYPE: Final = "vllm-grpc"
"""The contract's word for a vLLM server in Python."""

_INT32_MAX: Final = 2**31 - 1


class EngineServicer(VllmEngineServicer):  # type: ignore[misc]
    """The published servicer of `engine`, vLLM's AsyncLLM."""

    def __init__(
        self,
        engine: Any,
        *,
        admission: AdmissionController,
        readiness: Readiness,
        clock: Callable[[], float] = time.time,
    ) -> None:
        super().__init__(engine, clock())
        if self._warmup is not None:  # nothing here is compiled that a first request would meet
            self._warmup.cancel()
        self._admission = admission
        self._readiness = readiness
        self._clock = clock
        settings = Settings.from_additional_config(engine.vllm_config.additional_config)
        self._ranks = settings.ranks
        self._last_request_s = self.start_time

    async def Generate(self, request: Any, context: Any) -> Any:
        """Answer as published; note the time."""
        self._last_request_s = self._clock()
        async with aclosing(super().Generate(request, context)) as answers:
            async for answer in answers:
                yield answer

    async def HealthCheck(self, request: Any, context: Any) -> Any:
        """Readiness, by which a gateway routes requests before they fail."""
        answer = await super().HealthCheck(request, context)
        if answer.healthy and (why := await self._readiness.not_ready()) is not None:
            answer.healthy, answer.message = False, why
        return answer

    async def GetServerInfo(self, request: Any, context: Any) -> Any:
        """The server's state, with the seats of all ranks."""
        info = await super().GetServerInfo(request, context)
        info.max_num_seqs *= self._ranks
        info.active_requests = self._admission.in_flight
        info.is_paused = self._admission.closed is not None
        info.last_receive_timestamp = self._last_request_s
        info.uptime_seconds = self._clock() - self.start_time
        info.server_type = _SERVER_TYPE
        info.shm_namespace_id = ""  # nothing is read from shared memory here
        return info

    async def GetLoads(self, request: Any, context: Any) -> Any:
        """One entry, as one engine is one worker: its queues, and the room of all ranks."""
        answer = await super().GetLoads(request, context)
        for load in answer.loads:
            tokens = min(load.max_total_num_tokens * self._ranks, _INT32_MAX)
            load.max_total_num_tokens = tokens
            load.num_used_tokens = round(load.token_usage * tokens)
            load.max_running_requests *= self._ranks
        return answer
