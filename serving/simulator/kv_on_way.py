"""KV that waiting requests get from other chips, compiled: vLLM's WAITING_FOR_REMOTE_KVS.

It is asked for with the first decision that has a seat and blocks for its request, keeps these, and
takes its time from then on. Meanwhile those behind go before, with the blocks that it leaves. What
was pushed with the steps that computed it is there, and its request starts with that decision.
"""

# mypy: no-warn-return-any
# Fields of records have no type that mypy knows.

from emulator.compiled import compiled
from serving.simulator.scheduler_arrays import NEVER_NS, NONE, SchedulerArrays, SchedulerBounds


@compiled
def behind_awaited(
    s: SchedulerArrays, bounds: SchedulerBounds, rank: int, before: int, lacks: bool, now_ns: int
) -> tuple[int, int, bool]:
    """The first request behind `before`, or of the queue, that waits for no KV, and that before it;
    asks now for the KV of those between. NONE where there is none.

    Once a request `lacks` blocks, which is returned, only those have their turn whose KV has come,
    with the blocks that are kept for them: others may wait for nothing but these.
    """
    request = s.ranks[rank].waiting_first if before == NONE else s.requests[before].waiting_next
    while request != NONE:
        if s.requests[request].there_ns == NEVER_NS and not lacks:
            lacks = not _ask(s, bounds, rank, request, now_ns)
        if s.requests[request].there_ns <= now_ns and (not lacks or s.requests[request].blocks):
            break
        if lacks and not s.ranks[rank].kept_for:
            return before, NONE, lacks
        before, request = request, s.requests[request].waiting_next
    return before, request, lacks


@compiled
def _ask(s: SchedulerArrays, bounds: SchedulerBounds, rank: int, request: int, now_ns: int) -> bool:
    """Ask for a request's KV, if there are blocks for it and the drafts of its first step."""
    drafted = 2 * bounds.speculative_tokens  # padded as if it verified some, and those it makes
    tokens = min(s.requests[request].tokens + drafted, bounds.context_tokens)
    blocks = -(-tokens // bounds.block_tokens)
    if blocks > s.ranks[rank].free_blocks:
        return False
    s.ranks[rank].free_blocks -= blocks
    s.ranks[rank].kept_for += 1
    s.requests[request].blocks = blocks
    s.requests[request].there_ns = now_ns
    if not s.requests[request].is_pushed:
        s.requests[request].there_ns += s.requests[request].transfer_ns
    return True


@compiled
def let_go_kept(s: SchedulerArrays, rank: int, request: int) -> None:
    """A request that leaves the queue has no blocks any more that were kept for its KV."""
    if s.requests[request].blocks:
        s.ranks[rank].free_blocks += s.requests[request].blocks
        s.ranks[rank].kept_for -= 1
        s.requests[request].blocks = 0


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
