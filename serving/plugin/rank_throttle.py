"""Applies a prefill policy to unmodified vLLM schedulers, by settings that they read in every step.

A budget of prefill tokens becomes `max_num_scheduled_tokens` (decodes plus budget) and
`long_prefill_token_threshold` (budget), so that a long prompt leaves later decodes their tokens; 0
is vLLM's own `throttle_prefills`. Each rank has its own config.
"""

import copy
from collections.abc import Sequence
from itertools import islice

import numpy as np
from numpy.typing import NDArray
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.request import RequestStatus

from serving.policy.prefill_throttle import PrefillDemand, PrefillPolicy

I64 = NDArray[np.int64]

_STARTABLE = (RequestStatus.WAITING, RequestStatus.PREEMPTED)


class RankThrottle:
    """Schedules each rank within its policy's budget."""

    def __init__(self, ranks: Sequence[Scheduler], policy: PrefillPolicy) -> None:
        self.policy = policy
        self._ranks = ranks
        self._waited_steps = np.zeros(len(ranks), dtype=np.int64)
        self._tokens_max: int = ranks[0].max_num_scheduled_tokens
        self._threshold: int = ranks[0].scheduler_config.long_prefill_token_threshold
        self._adaptive: bool = ranks[0].adaptive_long_prefill_threshold
        # vLLM computes a prompt in one piece then, so that it fits a budget or never starts.
        self._whole_prompts: bool = not ranks[0].scheduler_config.enable_chunked_prefill
        for rank in ranks:
            rank.scheduler_config = copy.copy(rank.scheduler_config)

    def schedule(self, throttle_prefills: bool) -> list[SchedulerOutput]:
        """Schedule every rank; vLLM's `throttle_prefills` applies to those without a budget."""
        if not self.policy.pending_tokens_max:
            return [rank.schedule(throttle_prefills) for rank in self._ranks]
        demand = self._demand()
        budgets = self.policy.budgets(demand)
        held_up = np.array([budget == 0 for budget in budgets])  # [ranks]
        wanting = demand.pending_tokens > 0
        self._waited_steps = np.where(wanting & held_up, self._waited_steps + 1, 0)
        return [
            self._schedule(rank, budget, decodes, throttle_prefills)
            for rank, budget, decodes in zip(
                self._ranks, budgets, demand.decodes.tolist(), strict=True
            )
        ]

    def _demand(self) -> PrefillDemand:
        enough = self.policy.pending_tokens_max
        rows = [rank_demand(rank, enough) for rank in self._ranks]
        pending, decodes = np.array(rows, dtype=np.int64).T
        return PrefillDemand(
            pending_tokens=pending, decodes=decodes, waited_steps=self._waited_steps
        )

    def _schedule(
        self, rank: Scheduler, budget: int | None, decodes: int, throttle_prefills: bool
    ) -> SchedulerOutput:
        if budget and self._whole_prompts:
            budget = None
        config = rank.scheduler_config
        limited = budget is not None
        rank.adaptive_long_prefill_threshold = self._adaptive and not limited
        if budget is None:
            rank.max_num_scheduled_tokens = self._tokens_max
            config.long_prefill_token_threshold = self._threshold
            return rank.schedule(throttle_prefills)
        rank.max_num_scheduled_tokens = min(self._tokens_max, decodes + budget)
        if budget:
            thresholds = [budget, *([self._threshold] if self._threshold else [])]
            config.long_prefill_token_threshold = min(thresholds)
            return rank.schedule(throttle_prefills)
        # vLLM lifts the throttle while its last step left requests waiting; the policy decides.
        rank.prefill_capacity_bound = False
        return rank.schedule(throttle_prefills=True)


def rank_demand(rank: Scheduler, enough: int) -> tuple[int, int]:
    """Tokens that a rank could prefill, counted up to `enough`, and its decodes.

    Waiting requests count as far as seats and KV reach: one that cannot start must not delay other
    ranks. Cached prefixes are not known yet and count.
    """
    decodes = pending = 0
    for request in rank.running:
        if request.is_prefill_chunk:
            pending += request.num_tokens - request.num_computed_tokens
        else:
            decodes += 1
    manager = rank.kv_cache_manager
    free_tokens = manager.block_pool.get_num_free_blocks() * rank.block_size
    seats = max(0, rank.max_num_active_reqs - len(rank.running))
    startable = (request for request in rank.waiting if request.status in _STARTABLE)
    waiting = 0
    for request in islice(startable, seats):
        waiting += request.num_tokens
        if pending + waiting >= enough:
            break
    return min(pending + min(waiting, free_tokens), enough), decodes
