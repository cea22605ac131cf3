"""Requests that are aborted, or given up at their deadline, compiled: vLLM's `finish_requests`."""

# mypy: no-warn-return-any
# Fields of records have no type that mypy knows.

import numpy as np

from emulator.arrays import Int32s
from emulator.compiled import allocating, compiled
from serving.simulator.kv_on_way import let_go_kept
from serving.simulator.rank_queues import note_deadline, unlink, unlink_after
from serving.simulator.scheduler_arrays import NONE, PrefixCache, SchedulerArrays
from serving.simulator.scheduler_kernel import stop_running


@compiled
def abort(s: SchedulerArrays, c: PrefixCache | None, request: int) -> None:
    """`finish_requests`: a request that runs or waits is gone; of others, nothing changes."""
    rank = s.requests[request].rank
    if rank == NONE:
        return
    if s.requests[request].is_running:
        stop_running(s, c, rank, request)
    else:
        unlink(s, rank, request)
        let_go_kept(s, rank, request)
    s.requests[request].rank = NONE


@allocating
def abort_due(s: SchedulerArrays, c: PrefixCache | None, now_ns: int) -> Int32s:
    """`finish_requests` of those that run or wait with a deadline by now: [aborted]."""
    held = 0
    for rank in range(len(s.ranks)):
        held += s.ranks[rank].running_count + s.ranks[rank].waiting_count
    aborted, count = np.empty(held, np.int32), 0
    for rank in range(len(s.ranks)):
        if s.ranks[rank].deadline_ns == NONE or s.ranks[rank].deadline_ns > now_ns:
            continue
        s.ranks[rank].deadline_ns = NONE
        place = 0
        while place < s.ranks[rank].running_count:
            request = s.running[rank, place]
            if _is_due(s, request, now_ns):
                stop_running(s, c, rank, request)
                aborted[count] = request
                count += 1
            else:
                note_deadline(s, rank, request)
                place += 1
        before, request = NONE, s.ranks[rank].waiting_first
        while request != NONE:
            if _is_due(s, request, now_ns):
                unlink_after(s, rank, before, request)
                let_go_kept(s, rank, request)
                aborted[count] = request
                count += 1
            else:
                note_deadline(s, rank, request)
                before = request
            request = s.requests[request].waiting_next
    for place in range(count):
        s.requests[aborted[place]].rank = NONE
    return aborted[:count]


@compiled
def _is_due(s: SchedulerArrays, request: int, now_ns: int) -> bool:
    return s.requests[request].deadline_ns != NONE and s.requests[request].deadline_ns <= now_ns
