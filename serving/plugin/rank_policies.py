"""Applies the choice of a rank and the prefill policy to unmodified vLLM schedulers.

The policies decide from what stands here: each rank's load for `serving.policy.rank_choice`, its
pending prefill and decodes for `serving.policy.prefill_throttle`.
"""

import copy
from collections.abc import Sequence
from itertools import islice

import numpy as np
from numpy.typing import NDArray
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.request_queue import SchedulingPolicy
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.request import Request, RequestStatus

from serving.plugin.kv_connector import SchedulerConnector, brings_kv
from serving.plugin.rank_roles import RankRoles
from serving.policy.prefill_throttle import UNLIMITED, PrefillDemand, PrefillPolicy
from serving.policy.rank_choice import choose_rank

I64 = NDArray[np.int64]


def prefix_hit_tokens(rank: Scheduler, request: Request) -> int:
    """Cached tokens of the request on the rank, or that came there before it, but for the last,
    which is always computed.
    """
    if isinstance(rank.connector, SchedulerConnector):
        came = rank.connector.came_tokens(request)
        if came:
            return came
    manager = rank.kv_cache_manager
    hashes = request.block_hashes
    if not hashes or not manager.prefix_cache_lookup_enabled(request):
        return 0
    # On most ranks the first block is not there, and asking for it alone is several times cheaper.
    if manager.block_pool.get_cached_block(hashes[0], [0]) is None:
        return 0
    hit = manager.coordinator.find_longest_cache_hit(hashes, request.num_tokens - 1)
    return int(hit[1])


_TOKENS, _REQUESTS = 0, 1


class RankLoads:
    """Tokens and requests of each rank that go before another request, for the choice of its rank.

    Running ones go first, then waiting ones; with priority scheduling, those of no later priority.
    Counted once after a lockstep and then kept up with added requests, so that an arrival costs the
    same on a full machine as on an empty one.
    """

    def __init__(self, ranks: Sequence[Scheduler], roles: RankRoles) -> None:
        self._ranks = ranks
        self._roles = roles
        self._by_priority = ranks[0].policy is SchedulingPolicy.PRIORITY
        self._running: I64 | None = None  # [tokens and requests, ranks]; None: not counted
        self._waiting: dict[int, I64] = {}  # by priority, each [tokens and requests, ranks]

    def forget(self) -> None:
        """Count anew when next asked."""
        self._running = None

    def choose(self, request: Request, is_open: NDArray[np.bool_]) -> int | None:
        """The rank that takes `request`, of those open, [ranks]; None: none is."""
        load_tokens, requests = self.before(request)
        hit_tokens = [
            prefix_hit_tokens(rank, request) if may_take else 0
            for rank, may_take in zip(self._ranks, is_open, strict=True)
        ]
        return choose_rank(
            hit_tokens=np.array(hit_tokens, dtype=np.int64),
            load_tokens=load_tokens,
            has_seat=requests < self._ranks[0].max_num_active_reqs,
            is_up=is_open,
        )

    def before(self, request: Request) -> tuple[I64, I64]:
        """Tokens held or to compute, and requests, ahead of `request`: both [ranks]."""
        total = self._counted().copy()
        for priority, waiting in self._waiting.items():
            if priority <= self._priority(request):
                total += waiting
        for number, coming, tokens in self._roles.coming:
            if self._priority(coming) <= self._priority(request):
                total[:, number] += (tokens, 1)
        return total[_TOKENS], total[_REQUESTS]

    def add(self, rank: int, request: Request) -> None:
        """Add a request that now waits on `rank`."""
        self._counted()
        self._count(self._waiting_at(request), rank, request)

    def _counted(self) -> I64:
        if self._running is None:
            self._running = np.zeros((2, len(self._ranks)), dtype=np.int64)
            self._waiting = {}
            for number, rank in enumerate(self._ranks):
                for request in rank.requests.values():
                    if request.is_finished():  # and its KV is still on its way to it
                        continue
                    running = request.status == RequestStatus.RUNNING
                    into = self._running if running else self._waiting_at(request)
                    self._count(into, number, request)
        return self._running

    def _waiting_at(self, request: Request) -> I64:
        priority = self._priority(request)
        if priority not in self._waiting:
            self._waiting[priority] = np.zeros((2, len(self._ranks)), dtype=np.int64)
        return self._waiting[priority]

    def _priority(self, request: Request) -> int:
        return request.priority if self._by_priority else 0

    @staticmethod
    def _count(into: I64, rank: int, request: Request) -> None:
        into[_TOKENS, rank] += request.num_tokens
        into[_REQUESTS, rank] += 1


_STARTABLE = (RequestStatus.WAITING, RequestStatus.PREEMPTED)


class RankThrottle:
    """Schedules each rank within its policy's budget, by settings that vLLM reads in every step.

    A budget of prefill tokens becomes `max_num_scheduled_tokens` (decodes plus budget) and
    `long_prefill_token_threshold` (budget), so that a long prompt leaves later decodes their
    tokens; 0 is vLLM's own `throttle_prefills`. Each rank has its own config.
    """

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
        self._waited_steps = demand.waited_after(budgets)
        return [
            self._schedule(rank, budget, decodes, throttle_prefills)
            for rank, budget, decodes in zip(
                self._ranks, budgets.tolist(), demand.decodes.tolist(), strict=True
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
        self, rank: Scheduler, budget: int, decodes: int, throttle_prefills: bool
    ) -> SchedulerOutput:
        if budget and self._whole_prompts:
            budget = UNLIMITED
        config = rank.scheduler_config
        limited = budget != UNLIMITED
        rank.adaptive_long_prefill_threshold = self._adaptive and not limited
        if not limited:
            rank.max_num_scheduled_tokens = self._tokens_max
            config.long_prefill_token_threshold = self._threshold
            return rank.schedule(throttle_prefills)
        # A load takes no token, but vLLM begins none in a step that has no token left.
        loads = any(brings_kv(rank, request) for request in rank.waiting)
        rank.max_num_scheduled_tokens = min(self._tokens_max, decodes + budget + loads)
        if budget:
            thresholds = [budget, *([self._threshold] if self._threshold else [])]
            config.long_prefill_token_threshold = min(thresholds)
            return rank.schedule(throttle_prefills)
        # vLLM lifts the throttle while its last step left requests waiting; the policy decides.
        rank.prefill_capacity_bound = False
        return rank.schedule(throttle_prefills=True)


def rank_demand(rank: Scheduler, enough: int) -> tuple[int, int]:
    """Tokens that a rank could prefill, counted up to `enough`, and those of its decodes, with
    their drafts.

    Waiting requests count as far as seats and KV reach: one that cannot start must not delay other
    ranks. Cached prefixes are not known yet and count; those with KV from another rank decode once
    it is there.
    """
    decodes = pending = 0
    for request in rank.running:
        if request.is_prefill_chunk:
            pending += request.num_tokens - request.num_computed_tokens
        else:
            decodes += 1 + len(request.spec_token_ids)
    manager = rank.kv_cache_manager
    free_tokens = manager.block_pool.get_num_free_blocks() * rank.block_size
    seats = max(0, rank.max_num_active_reqs - len(rank.running))
    decodes += len(ready_kv(rank)) + _pushed_here(rank, seats)
    startable = (
        request
        for request in rank.waiting
        if request.status in _STARTABLE and not brings_kv(rank, request)
    )
    waiting = 0
    for request in islice(startable, seats):
        waiting += request.num_tokens
        if pending + waiting >= enough:
            break
    return min(pending + min(waiting, free_tokens), enough), decodes


def _pushed_here(rank: Scheduler, most: int) -> int:
    """Waiting requests, up to `most`, that decode next, as their KV came before them."""
    connector = rank.connector
    if not isinstance(connector, SchedulerConnector):
        return 0
    here = (request for request in rank.waiting if connector.came_tokens(request))
    return sum(1 for _ in islice(here, most))


def ready_kv(rank: Scheduler) -> list[Request]:
    """Waiting requests that decode next, as their KV has come from another rank."""
    if not isinstance(rank.connector, SchedulerConnector):
        return []
    return [
        request
        for request in rank.kv_holding_waiting
        if request.request_id in rank.finished_recving_kv_req_ids
        and request.num_computed_tokens  # else the transfer has failed
    ]
