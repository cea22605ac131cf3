"""Present capacity of the engine, from vLLM's configuration and the newest status."""

from dataclasses import replace
from threading import Thread
from typing import Any

from emulator.ultraserver.step_cost import StepCostModel
from serving.plugin.platform import deployment_of
from serving.plugin.stat_logger import stat_logger_of
from serving.policy.admission.capacity import NO_TIME, Capacity
from serving.policy.prefill_throttle import PrefillPolicy, parse_prefill_policy
from serving.server.gateway.engine_times import backlog_times
from serving.settings import Settings
from serving.wire.engine_status import EngineStatus


class EngineCapacity:
    """The present capacity of vLLM's AsyncLLM `engine`.

    Before the first status, all ranks are up and the dilation is 1. Each rank has its own seats, KV
    blocks and step tokens.

    The backlog times of 144 ranks take a second. With `promises`, a target for first tokens, they
    are there from the start; else a thread finds them, and until then no wait is foreseen.
    """

    def __init__(self, engine: Any, *, promises: bool) -> None:
        config = engine.vllm_config
        self._logger = stat_logger_of(engine)  # vLLM makes its loggers with the engine
        self._ranks = Settings.from_additional_config(config.additional_config).ranks
        self._seats = int(config.scheduler_config.max_num_seqs)
        self._step_tokens = int(config.scheduler_config.max_num_batched_tokens)
        cache = config.cache_config
        self._kv_tokens = int(cache.num_gpu_blocks or 0) * int(cache.block_size)
        self._backlog_times = NO_TIME
        self._status: EngineStatus | None = None
        deployment = deployment_of(config)
        machine = deployment.machine(config.cache_config.gpu_memory_utilization)
        policy = parse_prefill_policy(deployment.settings.prefill_policy)
        if promises:
            self._find_times(machine.cost_model, policy)
        else:
            given = (machine.cost_model, policy)
            Thread(target=self._find_times, args=given, name="backlog times", daemon=True).start()
        self._last = self._of(self._ranks, 1.0)

    def __call__(self) -> Capacity:
        """The newest capacity."""
        status = None if self._logger is None else self._logger.status
        if status is not None and status is not self._status:
            self._status = status
            self._last = self._of(status.ranks_up, status.dilation or 1.0)
        elif self._last.backlog_times is not self._backlog_times:
            self._last = replace(self._last, backlog_times=self._backlog_times)
        return self._last

    def _of(self, ranks: int, dilation: float) -> Capacity:
        return Capacity(
            seats=self._seats * ranks,
            kv_tokens=self._kv_tokens * ranks,
            prefill_tokens_per_step=self._step_tokens * ranks,
            dilation=dilation,
            ranks=ranks,
            backlog_times=self._backlog_times,
        )

    def _find_times(self, costs: StepCostModel, policy: PrefillPolicy) -> None:
        self._backlog_times = backlog_times(
            costs, policy, seats=self._seats, step_tokens=self._step_tokens
        )
