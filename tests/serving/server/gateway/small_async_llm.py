"""vLLM's real AsyncLLM on a small engine core in this process.

Requests are validated, fanned out, scheduled, aborted and detokenized by vLLM and our lockstep
scheduler, on KV pools checked at every step. Only the tokens are synthetic.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any
from unittest import mock

from vllm.v1.engine import EngineCoreOutputs, EngineCoreRequest, async_llm
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.engine.core_client import EngineCoreClient
from vllm.v1.engine.exceptions import EngineDeadError
from vllm.v1.request import Request, RequestStatus

from tests.serving.plugin.engine_config import BLOCK_TOKENS, block_hasher
from tests.serving.plugin.lockstep_machine import Machine

CONTEXT_TOKENS = 512
SEATS = 6


class SmallCore(Machine):
    """An engine core at the seam of vLLM's client of it; a step takes `step_s`, once `free` is set.

    Set `dead` to end it; `weights` names those of each rank, if any.
    """

    def __init__(self, ranks: int = 1, *, step_s: float = 0.0) -> None:
        super().__init__(ranks, scheduling_policy="priority")
        self.step_s = step_s
        self.weights: tuple[str, ...] = ()
        self.free = asyncio.Event()
        self.free.set()
        self.engine_ranks_managed = [0]
        self.resources = SimpleNamespace(engine_dead=False)
        self.aborted: list[str] = []
        self.added: list[str] = []
        self._outputs: asyncio.Queue[EngineCoreOutputs | Exception] = asyncio.Queue()
        self._work = asyncio.Event()
        self._stepping = asyncio.create_task(self._step_on())

    @property
    def config(self) -> Any:
        return self.scheduler.ranks[0].vllm_config

    @property
    def requests(self) -> int:
        return sum(len(rank.requests) for rank in self.scheduler.ranks)

    @property
    def used_blocks(self) -> int:
        pools = [rank.kv_cache_manager.block_pool for rank in self.scheduler.ranks]
        return sum(pool.num_gpu_blocks - 1 - pool.get_num_free_blocks() for pool in pools)

    async def get_supported_tasks_async(self) -> tuple[str, ...]:
        return ("generate",)

    async def add_request_async(self, request: EngineCoreRequest) -> None:
        if self.resources.engine_dead:
            raise EngineDeadError()
        params = request.sampling_params
        assert params is not None
        params.structured_outputs = None  # made-up tokens keep to no grammar
        asked = Request.from_engine_core_request(request, block_hasher(BLOCK_TOKENS))
        self.added.append(asked.request_id)
        self.scheduler.add_request(asked)
        self._work.set()

    async def abort_requests_async(self, request_ids: list[str]) -> None:
        self.aborted += request_ids
        self.scheduler.finish_requests(request_ids, RequestStatus.FINISHED_ABORTED)
        self._work.set()

    async def get_output_async(self) -> EngineCoreOutputs:
        outputs = await self._outputs.get()
        if isinstance(outputs, Exception):
            raise outputs
        return outputs

    async def reset_prefix_cache_async(
        self, reset_running_requests: bool = False, reset_connector: bool = False
    ) -> bool:
        return self.scheduler.reset_prefix_cache(reset_running_requests, reset_connector)

    async def is_scheduler_paused_async(self) -> bool:
        return False

    def die(self) -> None:
        """End like vLLM's client when the core's process is gone."""
        self.resources.engine_dead = True
        self._outputs.put_nowait(EngineDeadError())

    async def quiet(self) -> None:
        """Wait until no request is left, then assert empty KV pools."""
        while self.requests or self.scheduler.has_requests():
            await asyncio.sleep(0.001)
        assert self.used_blocks == 0

    def shutdown(self, timeout: float | None = None) -> None:
        del timeout
        self._stepping.cancel()

    async def _step_on(self) -> None:
        while True:
            if not self.scheduler.has_requests():
                self._work.clear()
                await self._work.wait()
            await self.free.wait()
            self.step(weights=self.weights)
            await asyncio.sleep(self.step_s)

    def _receive(self, results: dict[int, EngineCoreOutputs]) -> None:
        for outputs in results.values():
            self._outputs.put_nowait(outputs)


@asynccontextmanager
async def small_async_llm(
    ranks: int = 1, *, step_s: float = 0.0
) -> AsyncIterator[tuple[AsyncLLM, SmallCore]]:
    core = SmallCore(ranks, step_s=step_s)
    with (
        mock.patch.object(EngineCoreClient, "make_async_mp_client", return_value=core),
        # Our metrics are once in a process, and these engines are many.
        mock.patch.object(async_llm, "load_stat_logger_plugin_factories", return_value=[]),
    ):
        engine = AsyncLLM(core.config, executor_class=object, log_stats=True, log_requests=False)
    try:
        yield engine, core
    finally:
        engine.shutdown()
