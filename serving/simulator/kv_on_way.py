"""KV that waiting requests get from other chips, compiled: vLLM's WAITING_FOR_REMOTE_KVS.

It is asked for with the first decision that has a seat and blocks for its request, and takes its
time from then on. Meanwhile those behind go before, with the blocks that it leaves; those that run
may take its blocks until it is there.
"""

# mypy: no-warn-return-any
# Fields of records have no type that mypy knows.

from emulator.compiled import compiled
from serving.simulator.scheduler_arrays import NEVER_NS, NONE, SchedulerArrays, SchedulerBounds


@compiled
def behind_awaited(
    s: SchedulerArrays, bounds: SchedulerBounds, rank: int, before: int, asked: int, now_ns: int
) -> tuple[int, int, int]:
    """The first request behind `before`, or of the queue, that waits for no KV, and that before it;
    asks now for the KV of those between. NONE where there is none, or no block for one of these.

    `asked`: blocks of KV that is on its way for those up to `before`; returns those before the
    request.
    """
    request = s.ranks[rank].waiting_first if before == NONE else s.requests[before].waiting_next
    while request != NONE and s.requests[request].there_ns > now_ns:
        blocks = -(-s.requests[request].tokens // bounds.block_tokens)
        if s.requests[request].there_ns == NEVER_NS:
            if asked + blocks > s.ranks[rank].free_blocks:
                return before, NONE, asked
            s.requests[request].there_ns = now_ns + s.requests[request].transfer_ns
        asked += blocks
        before, request = request, s.requests[request].waiting_next
    return before, request, asked


@compiled
def next_kv_ns(s: SchedulerArrays, now_ns: int) -> int:
    """When the next KV that is on its way is there; NEVER_NS without any."""
    next_ns = NEVER_NS
    for rank in range(len(s.ranks)):
        request = s.ranks[rank].waiting_first
        while request != NONE:
            if s.requests[request].there_ns > now_ns:
                next_ns = min(next_ns, s.requests[request].there_ns)
            request = s.requests[request].waiting_next
    return next_ns
