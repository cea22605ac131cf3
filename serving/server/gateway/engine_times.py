"""The engine as admission sees it: its present capacity, and step times by the cost model.

Times are interpolated between some hundred points: prompt tokens of a step, decodes, their
contexts, and a prefill's depth in its prompt. The prefill policy says how many tokens of a backlog
a step takes.
"""

from collections.abc import Callable
from dataclasses import replace
from threading import Thread
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from emulator.specs.batch import StepBatch
from emulator.ultraserver.step_cost import StepCostModel
from emulator.units import NS_PER_S
from serving.plugin.platform import deployment_of
from serving.plugin.stat_logger import stat_logger_of
from serving.policy.admission.capacity import NO_TIME, BacklogTimes, Capacity
from serving.policy.prefill_throttle import (
    UNLIMITED,
    PrefillDemand,
    PrefillPolicy,
    parse_prefill_policy,
)
from serving.settings import Settings
from serving.wire.engine_status import EngineStatus

Float64s = NDArray[np.float64]

_BACKLOG_TOKENS_MAX: Final = 2**20
_BACKLOGS_PER_OCTAVE: Final = 8
_BACKLOG_TOKENS_MIN: Final = 16

_DECODES: Final = (1, 16, 64, 256, 1024)
"""Decodes of a rank, up to its seats."""

_CONTEXT_TOKENS: Final = 2_048
_PROMPT_TOKENS: Final = 8_192
"""Context of each decode, and before a prefill's tokens: steps with and without give the slope."""


def backlog_times(
    costs: StepCostModel, policy: PrefillPolicy, *, seats: int, step_tokens: int
) -> BacklogTimes:
    """The table for ranks of `seats` and `step_tokens` a step."""
    decodes = np.array([*(each for each in _DECODES if each < seats), seats], dtype=np.int64)
    steps = np.unique(np.minimum([64, 256, 512, 1024, 2048, step_tokens], step_tokens))
    backlogs = _backlogs()
    budget, taken = _levels(policy, backlogs, costs.partition.ranks, step_tokens)
    free = np.full(len(backlogs), float(step_tokens))

    def tables(context_tokens: int, prompt_tokens: int) -> tuple[Float64s, Float64s]:
        """Both [backlogs, decodes + 1]: drain_s and step_s."""
        columns = []
        for beside, level, per_step in (
            *((int(each), budget, taken) for each in decodes),
            (0, free, free),
        ):
            of_step_s = [
                _step_s(costs, int(tokens), beside, context_tokens, prompt_tokens)
                for tokens in steps
            ]
            step_s = np.interp(level, steps, of_step_s)  # [backlogs]
            columns.append((_drain_s(backlogs, step_s / per_step), step_s))
        drains, lengths = zip(*columns, strict=True)
        return np.stack(drains, axis=1), np.stack(lengths, axis=1)

    drain_s, step_s = tables(0, 0)
    drain_context_s, step_context_s = tables(_CONTEXT_TOKENS, 0)
    drain_prompt_s, step_prompt_s = tables(0, _PROMPT_TOKENS)
    return BacklogTimes(
        tokens=backlogs,
        decodes=decodes.astype(np.float64),
        drain_s=drain_s,
        step_s=step_s,
        drain_s_per_context=(drain_context_s - drain_s) / _CONTEXT_TOKENS,
        step_s_per_context=(step_context_s - step_s) / _CONTEXT_TOKENS,
        # A prefill is half through its prompt on average.
        drain_s_per_prompt=(drain_prompt_s - drain_s) / (2 * _PROMPT_TOKENS),
        step_s_per_prompt=(step_prompt_s - step_s) / (2 * _PROMPT_TOKENS),
    )


def _backlogs() -> Float64s:
    """[backlogs]: 0, then an eighth of an octave apart."""
    octaves = np.log2(_BACKLOG_TOKENS_MAX / _BACKLOG_TOKENS_MIN)
    points = _BACKLOG_TOKENS_MIN * 2 ** np.linspace(
        0, octaves, int(octaves * _BACKLOGS_PER_OCTAVE) + 1
    )
    return np.concatenate(([0.0], points))


def _levels(
    policy: PrefillPolicy, backlogs: Float64s, ranks: int, step_tokens: int
) -> tuple[Float64s, Float64s]:
    """Prompt tokens of a step beside decodes, both [backlogs]: a rank's largest, and the mean."""
    levels = []
    for backlog in backlogs:
        demand = PrefillDemand(
            pending_tokens=np.full(ranks, max(1, round(backlog)), dtype=np.int64),
            decodes=np.ones(ranks, dtype=np.int64),
            waited_steps=np.zeros(ranks, dtype=np.int64),
        )
        budgets = policy.budgets(demand)
        tokens = np.where(budgets == UNLIMITED, step_tokens, np.minimum(budgets, step_tokens))
        levels.append((tokens.max(), tokens.mean()))
    most, mean = np.array(levels, dtype=np.float64).T
    return most, mean


def _step_s(
    costs: StepCostModel, tokens: int, decodes: int, context_tokens: int, prompt_tokens: int
) -> float:
    """Seconds of a step in which each rank has a prefill of `tokens` and `decodes` decodes."""
    ranks = costs.partition.ranks
    new = np.array([tokens] + [1] * decodes, dtype=np.int64)
    context = np.array([prompt_tokens] + [context_tokens] * decodes, dtype=np.int64)
    batch = StepBatch(
        ranks=ranks,
        rank=np.repeat(np.arange(ranks, dtype=np.int64), len(new)),
        new_tokens=np.tile(new, ranks),
        context_tokens=np.tile(context, ranks),
        logit_rows=np.full(ranks, len(new), dtype=np.int64),
    )
    return costs.cost(batch).duration_ns / NS_PER_S


def _drain_s(backlogs: Float64s, s_per_token: Float64s) -> Float64s:
    """[backlogs]: time to drain, an integral by the trapezium rule."""
    parts = np.diff(backlogs) * (s_per_token[1:] + s_per_token[:-1]) / 2.0
    return np.concatenate(([0.0], np.cumsum(parts)))


def engine_seats(engine: Any) -> Callable[[], int]:
    """The seats of the ranks that are up, by the newest status of vLLM's AsyncLLM `engine`."""
    config, logger = engine.vllm_config, stat_logger_of(engine)
    ranks = Settings.from_additional_config(config.additional_config).ranks
    seats = int(config.scheduler_config.max_num_seqs)

    def now() -> int:
        status = None if logger is None else logger.status
        return seats * (ranks if status is None else status.ranks_up)

    return now


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
