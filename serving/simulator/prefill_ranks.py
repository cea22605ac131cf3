"""Ranks of one engine that prefill, and KV on its way to those that decode: `RankRoles` of arrays.

What a transfer costs is `kv_sent`, as on the live machine. Unlike there, a request gets its blocks
on the next rank when its KV is there, and those on the first are free as it leaves.
"""

from collections.abc import Sequence
from heapq import heapify, heappop, heappush
from typing import NamedTuple

import numpy as np

from emulator.arrays import Bools, Int64s
from emulator.ultraserver.handover_cost import kv_sent
from emulator.ultraserver.machine_layout import MachineLayout
from serving.policy.rank_choice import choose_rank
from serving.simulator import compiled_schedulers as kernel
from serving.simulator import request_migration as migration
from serving.simulator.lockstep_schedulers import LockstepSchedulers


class KvOnWay(NamedTuple):
    """A request between two ranks, until `there_ns`."""

    there_ns: int
    request: int
    from_rank: int
    to_rank: int
    joules: float


class PrefillRanks:
    """The first `count` ranks of `schedulers` prefill, on a machine of `layout`."""

    def __init__(self, schedulers: LockstepSchedulers, count: int, layout: MachineLayout) -> None:
        self._schedulers = schedulers
        self._layout = layout
        ranks = len(schedulers.arrays.ranks)
        self._prefill: Bools = np.arange(ranks) < count
        self._open: Bools = np.ones(ranks, dtype=np.bool_)
        self._on_way: list[KvOnWay] = []  # a heap
        self.joules = 0.0
        """Of transfers that have ended, beyond idle chips."""
        schedulers.revise_demand = self._count_ready
        self._let_prefill()

    @property
    def waits_until_ns(self) -> int | None:
        """When the next step can begin, if every request is on its way; None if others are not."""
        waits = self._on_way and len(self._on_way) == self._schedulers.requests
        return self._on_way[0].there_ns if waits else None

    def send_on(self, end_ns: int) -> None:
        """After a step that ends then: requests with their next token leave ranks that prefill."""
        arrays, decode = self._schedulers.arrays, self._open & ~self._prefill
        if not decode.any():
            return
        leaving = [
            (rank, request)
            for rank in np.flatnonzero(self._prefill).tolist()
            for request in arrays.running[rank, : arrays.ranks[rank]["running_count"]].tolist()
            if not arrays.requests[request]["is_prefill"]
        ]
        arrays.ranks["is_open"] = decode
        for rank, request in leaving:
            self._send(request, rank, end_ns)
        self._let_prefill()

    def _send(self, request: int, from_rank: int, end_ns: int) -> None:
        arrays = self._schedulers.arrays
        kernel.abort(arrays, self._schedulers.cache, request)
        state = arrays.requests[request]
        computed = int(state["tokens"]) - 1
        state["computed"], state["received"] = 0, computed
        figures = self._schedulers.weighed(request)
        to_rank, hits = choose_rank(**figures), figures["hit_tokens"]
        assert to_rank is not None, "a rank that decodes is open"
        self._count(request, to_rank, 1)
        there_ns, joules = end_ns, 0.0
        if computed > hits[to_rank]:
            sent = computed - int(hits[to_rank])
            cost = kv_sent(self._layout, from_rank=from_rank, to_rank=to_rank, tokens=sent)
            there_ns, joules = end_ns + cost.duration_ns, cost.joules
        heappush(self._on_way, KvOnWay(there_ns, request, from_rank, to_rank, joules))

    def _count(self, request: int, rank: int, requests: int) -> None:
        """Count a request on its way among those that wait on its rank, or no more."""
        arrays = self._schedulers.arrays
        state = arrays.requests[request]
        arrays.waiting_tokens[rank, state["level"]] += requests * state["tokens"]
        arrays.waiting_requests[rank, state["level"]] += requests

    def receive(self, now_ns: int) -> None:
        """Before a step that begins now: queue requests whose KV is there."""
        while self._on_way and self._on_way[0].there_ns <= now_ns:
            there = heappop(self._on_way)
            self.joules += there.joules
            self._queue(there)

    def _queue(self, there: KvOnWay) -> None:
        self._count(there.request, there.to_rank, -1)
        arrays, bounds = self._schedulers.arrays, self._schedulers.bounds
        kernel.put_in(arrays, bounds, there.request, there.to_rank)

    def _count_ready(self, pending: Int64s, decodes: Int64s) -> None:
        """Count waiting requests whose KV is there as decodes, not as prefills, both [ranks]."""
        arrays, bounds = self._schedulers.arrays, self._schedulers.bounds
        enough = self._schedulers.policy.pending_tokens_max
        for rank in np.flatnonzero(arrays.ranks["waiting_count"]).tolist():
            waiting = arrays.requests[migration.waiting_requests(arrays, rank)]
            ready = waiting["received"] > 0
            if not ready.any():
                continue
            decodes[rank] += ready.sum()
            running = arrays.requests[arrays.running[rank, : arrays.ranks[rank]["running_count"]]]
            prefills = running[running["is_prefill"]]
            seats = bounds.seats - len(running)
            started = int((prefills["tokens"] - prefills["computed"]).sum())
            startable = int(waiting[~ready]["tokens"][:seats].sum())
            free = int(arrays.ranks[rank]["free_blocks"]) * bounds.block_tokens
            pending[rank] = min(started + min(startable, free), enough)

    def follow(self, up: Bools, closed: Bools, lost: Sequence[int]) -> None:
        """Ranks open and close, or are lost with what they hold; before requests move.

        A request on its way from or to a rank that is gone waits on its next one without its KV.
        """
        self._open = up & ~closed
        self._let_prefill()
        gone = ~up
        gone[list(lost)] = True
        on_way, self._on_way = self._on_way, []
        for each in on_way:
            if gone[each.from_rank] or gone[each.to_rank]:
                self._schedulers.arrays.requests[each.request]["received"] = 0
                self._queue(each)
            else:
                self._on_way.append(each)
        heapify(self._on_way)

    def _let_prefill(self) -> None:
        """Open the ranks that prefill; all, if none of them is open."""
        prefill = self._open & self._prefill
        self._schedulers.arrays.ranks["is_open"] = prefill if prefill.any() else self._open
