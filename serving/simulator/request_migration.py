"""Requests of ranks that leave: `plugin.request_migration`, of arrays.

Ranks leave seldom, so this is numpy, and compiles nothing.
"""

from typing import Final

import numpy as np

from emulator.arrays import Int64s
from serving.simulator.scheduler_arrays import NEVER_NS, NONE, PrefixCache, SchedulerArrays

_LOST: Final = ("computed", "drafts", "blocks", "hashed", "is_prefill", "is_running")
"""Of a request that leaves its rank."""
_RECEIVED: Final = ("received", "there_ns")
"""The same, if its KV has been asked for: what has not lies elsewhere, and can still be."""


def take_out(
    arrays: SchedulerArrays, cache: PrefixCache | None, rank: int, all_blocks: int
) -> Int64s:
    """Empty a rank and its cache; returns its requests, in no order: [taken].

    They keep their generated tokens; of those that run, it counts as a preemption. All of the
    rank's blocks, `all_blocks`, are free then.
    """
    requests, idle = arrays.requests, arrays.ranks[rank]
    running = arrays.running[rank, : idle["running_count"]]
    requests["preemptions"][running] += 1
    taken = np.concatenate([running, waiting_requests(arrays, rank)])
    for field in _LOST:
        requests[field][taken] = 0
    asked = taken[requests["there_ns"][taken] != NEVER_NS]
    for field in _RECEIVED:
        requests[field][asked] = 0
    requests["is_pushed"][taken] = False  # what lay beside the rank's blocks is lost with them
    requests["rank"][taken] = NONE
    for field in ("running_count", "running_tokens", "waiting_count", "kept_for"):
        idle[field] = 0
    for field in ("waiting_first", "waiting_last", "deadline_ns"):
        idle[field] = NONE
    idle["free_blocks"] = all_blocks
    arrays.waiting_tokens[rank] = arrays.waiting_requests[rank] = 0
    if cache is not None:
        cache.free_seats[rank] = np.arange(cache.free_seats.shape[1])
        forget_prefixes(arrays, cache, rank)
    return taken


def forget_prefixes(arrays: SchedulerArrays, cache: PrefixCache, rank: int) -> None:
    """`reset_prefix_cache` of a rank on which nothing runs: no block has content."""
    idle = arrays.ranks[rank]
    assert idle["running_count"] == 0, "blocks of running requests keep their content"
    cache.blocks[rank] = np.zeros((), dtype=cache.blocks.dtype)
    cache.buckets[rank] = 0
    idle["fresh"] = 1
    idle["unhashed_top"] = idle["cached_first"] = idle["cached_last"] = 0


def waiting_requests(arrays: SchedulerArrays, rank: int) -> Int64s:
    """A rank's queue, from its front: [waiting]."""
    following, request = arrays.requests["waiting_next"], int(arrays.ranks[rank]["waiting_first"])
    waiting = []
    while request != NONE:
        waiting.append(request)
        request = int(following[request])
    return np.array(waiting, dtype=np.int64)


def by_arrival(arrays: SchedulerArrays, requests: Int64s) -> Int64s:
    """Sorted by time of arrival, then by number."""
    order = np.lexsort((requests, arrays.requests["arrival_ns"][requests]))
    ordered: Int64s = requests[order]
    return ordered


def restore_order(arrays: SchedulerArrays, requests: Int64s) -> None:
    """Sort the queues that some waiting requests came to by arrival."""
    for rank in np.unique(arrays.requests["rank"][requests]).tolist():
        waiting = by_arrival(arrays, waiting_requests(arrays, rank))
        arrays.requests["waiting_next"][waiting] = np.append(waiting[1:], NONE)
        arrays.ranks[rank]["waiting_first"] = waiting[0]
        arrays.ranks[rank]["waiting_last"] = waiting[-1]
