"""Load of each rank, for the choice of a rank.

Counted once after a lockstep and then kept up with added requests, so that an arrival costs the
same on a full machine as on an empty one.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from vllm.v1.core.sched.request_queue import SchedulingPolicy
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.request import Request, RequestStatus


def prefix_hit_tokens(rank: Scheduler, request: Request) -> int:
    """Cached tokens of the request on the rank, but for the last, which is always computed."""
    manager = rank.kv_cache_manager
    hashes = request.block_hashes
    if not hashes or not manager.prefix_cache_lookup_enabled(request):
        return 0
    # On most ranks the first block is not there, and asking for it alone is several times cheaper.
    if manager.block_pool.get_cached_block(hashes[0], [0]) is None:
        return 0
    hit = manager.coordinator.find_longest_cache_hit(hashes, request.num_tokens - 1)
    return int(hit[1])


I64 = NDArray[np.int64]

_TOKENS, _REQUESTS = 0, 1


class RankLoads:
    """Tokens and requests of each rank that go before another request.

    Running ones go first, then waiting ones; with priority scheduling, those of no later priority.
    """

    def __init__(self, ranks: Sequence[Scheduler]) -> None:
        self._ranks = ranks
        self._by_priority = ranks[0].policy is SchedulingPolicy.PRIORITY
        self._running: I64 | None = None  # [tokens and requests, ranks]; None: not counted
        self._waiting: dict[int, I64] = {}  # by priority, each [tokens and requests, ranks]

    def forget(self) -> None:
        """Count anew when next asked."""
        self._running = None

    def before(self, request: Request) -> tuple[I64, I64]:
        """Tokens held or to compute, and requests, ahead of `request`: both [ranks]."""
        total = self._counted().copy()
        for priority, waiting in self._waiting.items():
            if priority <= self._priority(request):
                total += waiting
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
