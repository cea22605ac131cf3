"""The ranks' waiting requests and the choice of a rank, compiled: `choose_rank`, `RankLoads`."""

# mypy: no-warn-return-any
# Fields of records have no type that mypy knows.

import numpy as np

from emulator.arrays import Int64s
from emulator.compiled import allocating, compiled
from serving.simulator.kv_blocks import hit_blocks
from serving.simulator.scheduler_arrays import NONE, PrefixCache, SchedulerArrays, SchedulerBounds


@compiled
def loads(s: SchedulerArrays, request: int, rank_tokens: Int64s, rank_requests: Int64s) -> None:
    """`RankLoads.before`: tokens and requests of each rank that go before `request`: [ranks]."""
    for rank in range(len(s.ranks)):
        rank_tokens[rank] = s.ranks[rank].running_tokens
        rank_requests[rank] = s.ranks[rank].running_count
        for level in range(s.requests[request].level + 1):
            rank_tokens[rank] += s.waiting_tokens[rank, level]
            rank_requests[rank] += s.waiting_requests[rank, level]


@compiled
def hit_tokens(
    s: SchedulerArrays, bounds: SchedulerBounds, c: PrefixCache | None, request: int, tokens: Int64s
) -> None:
    """Tokens of `request` in the cache of each open rank: [ranks]."""
    for rank in range(len(s.ranks)):
        tokens[rank] = 0
        if c is not None and s.ranks[rank].is_open:
            tokens[rank] = hit_blocks(s, bounds, c, rank, request) * bounds.block_tokens


@allocating
def most_hit_tokens(
    s: SchedulerArrays, bounds: SchedulerBounds, c: PrefixCache | None, request: int
) -> int:
    """Tokens of `request` in the cache of the rank that has most of them."""
    hits = np.empty(len(s.ranks), np.int64)
    hit_tokens(s, bounds, c, request, hits)
    return hits.max()


@compiled
def held_tokens(s: SchedulerArrays) -> int:
    """Tokens that requests of all ranks hold or have yet to compute."""
    tokens = 0
    for rank in range(len(s.ranks)):
        tokens += s.ranks[rank].running_tokens
        for level in range(s.waiting_tokens.shape[1]):
            tokens += s.waiting_tokens[rank, level]
    return tokens


@allocating
def chosen_rank(
    s: SchedulerArrays, bounds: SchedulerBounds, c: PrefixCache | None, request: int
) -> int:
    """`choose_rank`: of open ranks, a seat first, then the fewest tokens, then the longest hit."""
    ranks = len(s.ranks)
    tokens, requests = np.empty(ranks, np.int64), np.empty(ranks, np.int64)
    hits = np.empty(ranks, np.int64)
    loads(s, request, tokens, requests)
    hit_tokens(s, bounds, c, request, hits)
    best = NONE
    for rank in range(ranks):
        if not s.ranks[rank].is_open:
            continue
        if best == NONE:
            best = rank
            continue
        full, best_full = requests[rank] >= bounds.seats, requests[best] >= bounds.seats
        left, best_left = tokens[rank] - hits[rank], tokens[best] - hits[best]
        if (
            full < best_full
            or (full == best_full and left < best_left)
            or (full == best_full and left == best_left and hits[rank] > hits[best])
        ):
            best = rank
    return best


@compiled
def put_in(s: SchedulerArrays, bounds: SchedulerBounds, request: int, rank: int) -> None:
    """Queue a request on `rank`: at the end, or by priority and arrival."""
    s.requests[request].rank = rank
    note_deadline(s, rank, request)
    before, behind = NONE, s.ranks[rank].waiting_first
    last = s.ranks[rank].waiting_last
    if last != NONE and not (bounds.by_priority and goes_before(s, request, last)):
        before, behind = last, NONE
    while behind != NONE and not goes_before(s, request, behind):
        before, behind = behind, s.requests[behind].waiting_next
    link(s, rank, request, before, behind)


@compiled
def note_deadline(s: SchedulerArrays, rank: int, request: int) -> None:
    """Keep a rank's earliest deadline, where `request` has an earlier one."""
    deadline_ns, earliest_ns = s.requests[request].deadline_ns, s.ranks[rank].deadline_ns
    if deadline_ns != NONE and (earliest_ns == NONE or deadline_ns < earliest_ns):
        s.ranks[rank].deadline_ns = deadline_ns


@compiled
def goes_before(s: SchedulerArrays, request: int, other: int) -> bool:
    """By priority, then by arrival."""
    if s.requests[request].level != s.requests[other].level:
        return s.requests[request].level < s.requests[other].level
    if s.requests[request].arrival_ns != s.requests[other].arrival_ns:
        return s.requests[request].arrival_ns < s.requests[other].arrival_ns
    return request < other


@compiled
def link(s: SchedulerArrays, rank: int, request: int, before: int, behind: int) -> None:
    """Put a request between two of a rank's queue, or NONE at an end."""
    s.requests[request].waiting_next = behind
    if before == NONE:
        s.ranks[rank].waiting_first = request
    else:
        s.requests[before].waiting_next = request
    if behind == NONE:
        s.ranks[rank].waiting_last = request
    s.ranks[rank].waiting_count += 1
    s.waiting_tokens[rank, s.requests[request].level] += s.requests[request].tokens
    s.waiting_requests[rank, s.requests[request].level] += 1


@compiled
def unlink(s: SchedulerArrays, rank: int, request: int) -> None:
    """Take a request out of a rank's queue."""
    before, found = NONE, s.ranks[rank].waiting_first
    while found != request:
        before, found = found, s.requests[found].waiting_next
    unlink_after(s, rank, before, request)


@compiled
def unlink_after(s: SchedulerArrays, rank: int, before: int, request: int) -> None:
    """Take a request out that stands behind another, or NONE, in a rank's queue."""
    if before == NONE:
        s.ranks[rank].waiting_first = s.requests[request].waiting_next
    else:
        s.requests[before].waiting_next = s.requests[request].waiting_next
    if s.requests[request].waiting_next == NONE:
        s.ranks[rank].waiting_last = before
    s.ranks[rank].waiting_count -= 1
    s.waiting_tokens[rank, s.requests[request].level] -= s.requests[request].tokens
    s.waiting_requests[rank, s.requests[request].level] -= 1
