"""A rank's KV blocks with prefix caching, compiled: vLLM's block pool, its index and its eviction.

Free blocks stand as in vLLM's queue: those without content first, the last freed first; then those
that were never used; then those with content, the oldest first. A new block comes from the front. A
cached block that is hit leaves the queue.
"""

# mypy: no-warn-return-any
# Fields of records have no type that mypy knows.

import numpy as np

from emulator.arrays import Int32s
from emulator.compiled import compiled
from serving.simulator.scheduler_arrays import PrefixCache, SchedulerArrays, SchedulerBounds

_MIX = -7046029254386353131  # 2**64 over the golden ratio: spreads keys over buckets


@compiled
def _bucket_of(c: PrefixCache, key: int) -> int:
    mixed = key * _MIX
    return (mixed ^ (mixed >> 32)) & (c.buckets.shape[1] - 1)


@compiled
def _cached(c: PrefixCache, rank: int, key: int) -> int:
    """The block that has been in the index longest under `key`; 0 without one."""
    block = c.buckets[rank, _bucket_of(c, key)]
    while block and c.blocks[rank, block].key != key:
        block = c.blocks[rank, block].chain_next
    return block


@compiled
def _insert(c: PrefixCache, rank: int, block: int, key: int) -> None:
    c.blocks[rank, block].key = key
    c.blocks[rank, block].is_hashed = True
    c.blocks[rank, block].chain_next = 0
    bucket = _bucket_of(c, key)
    last = c.buckets[rank, bucket]
    if not last:
        c.buckets[rank, bucket] = block
        return
    while c.blocks[rank, last].chain_next:
        last = c.blocks[rank, last].chain_next
    c.blocks[rank, last].chain_next = block


@compiled
def _remove(c: PrefixCache, rank: int, block: int) -> None:
    c.blocks[rank, block].is_hashed = False
    bucket = _bucket_of(c, c.blocks[rank, block].key)
    before = c.buckets[rank, bucket]
    if before == block:
        c.buckets[rank, bucket] = c.blocks[rank, block].chain_next
        return
    while c.blocks[rank, before].chain_next != block:
        before = c.blocks[rank, before].chain_next
    c.blocks[rank, before].chain_next = c.blocks[rank, block].chain_next


@compiled
def hit_blocks(
    s: SchedulerArrays, bounds: SchedulerBounds, c: PrefixCache, rank: int, request: int
) -> int:
    """Leading blocks of `request` in the cache; its last token is computed in any case.

    With a draft module, the last of them does not count: it wants its tokens computed.
    """
    begin, hits = s.requests[request].key_begin, 0
    while hits < (s.requests[request].tokens - 1) // bounds.block_tokens and _cached(
        c, rank, c.block_keys[begin + hits]
    ):
        hits += 1
    if bounds.speculative_tokens and not bounds.draft_slots and hits:
        hits -= 1
    return hits


@compiled
def free_hit_blocks(s: SchedulerArrays, c: PrefixCache, rank: int, request: int, hits: int) -> int:
    """How many of the first `hits` blocks are free, and would leave the queue."""
    begin, free = s.requests[request].key_begin, 0
    for number in range(hits):
        free += c.blocks[rank, _cached(c, rank, c.block_keys[begin + number])].references == 0
    return free


@compiled
def take_hits(s: SchedulerArrays, c: PrefixCache, rank: int, request: int, hits: int) -> None:
    """Give a request that starts its seat, and the first `hits` blocks from the cache."""
    s.requests[request].seat = c.free_seats[rank, s.ranks[rank].running_count]
    begin = s.requests[request].key_begin
    for number in range(hits):
        block = _cached(c, rank, c.block_keys[begin + number])
        if c.blocks[rank, block].references == 0:
            before, behind = c.blocks[rank, block].free_before, c.blocks[rank, block].free_next
            if before:
                c.blocks[rank, before].free_next = behind
            else:
                s.ranks[rank].cached_first = behind
            if behind:
                c.blocks[rank, behind].free_before = before
            else:
                s.ranks[rank].cached_last = before
            s.ranks[rank].free_blocks -= 1
        c.blocks[rank, block].references += 1
        c.table[rank, s.requests[request].seat, number] = block
    s.requests[request].blocks = s.requests[request].hashed = hits


@compiled
def take_new(s: SchedulerArrays, c: PrefixCache, rank: int, request: int, count: int) -> None:
    """Append `count` blocks from the front of the free queue; content that they had is evicted."""
    for _ in range(count):
        if s.ranks[rank].unhashed_top:
            block = s.ranks[rank].unhashed_top
            s.ranks[rank].unhashed_top = c.blocks[rank, block].free_next
        elif s.ranks[rank].fresh < c.blocks.shape[1]:
            block = s.ranks[rank].fresh
            s.ranks[rank].fresh += 1
        else:
            block = s.ranks[rank].cached_first
            behind = c.blocks[rank, block].free_next
            s.ranks[rank].cached_first = behind
            if behind:
                c.blocks[rank, behind].free_before = 0
            else:
                s.ranks[rank].cached_last = 0
            _remove(c, rank, block)
        c.blocks[rank, block].references = 1
        c.table[rank, s.requests[request].seat, s.requests[request].blocks] = block
        s.requests[request].blocks += 1
    s.ranks[rank].free_blocks -= count


@compiled
def index_full_blocks(
    s: SchedulerArrays, c: PrefixCache, rank: int, request: int, tokens: int, block_tokens: int
) -> None:
    """Put blocks that the first `tokens` fill into the index."""
    begin, number = s.requests[request].key_begin, s.requests[request].hashed
    while (number + 1) * block_tokens <= tokens:
        block = c.table[rank, s.requests[request].seat, number]
        _insert(c, rank, block, c.block_keys[begin + number])
        number += 1
    s.requests[request].hashed = number


@compiled
def give_back(s: SchedulerArrays, c: PrefixCache, rank: int, request: int) -> None:
    """Return a request's blocks and its seat, once it does not run any more."""
    seat = s.requests[request].seat
    let_go(s, c, rank, c.table, (rank, seat), s.requests[request].blocks)
    s.requests[request].blocks = s.requests[request].hashed = 0
    c.free_seats[rank, s.ranks[rank].running_count] = seat


@compiled
def let_go(
    s: SchedulerArrays,
    c: PrefixCache,
    rank: int,
    table: Int32s,
    row: tuple[int, int],
    count: int,
) -> None:
    """Take a reference from so many blocks of a row of `table`, the last first; those that have
    none left are free.
    """
    unhashed_first = unhashed_last = np.int32(0)
    for number in range(count - 1, -1, -1):
        block = table[row[0], row[1], number]
        c.blocks[rank, block].references -= 1
        if c.blocks[rank, block].references:
            continue
        s.ranks[rank].free_blocks += 1
        c.blocks[rank, block].free_next = 0
        if c.blocks[rank, block].is_hashed:
            last = s.ranks[rank].cached_last
            c.blocks[rank, block].free_before = last
            if last:
                c.blocks[rank, last].free_next = block
            else:
                s.ranks[rank].cached_first = block
            s.ranks[rank].cached_last = block
        elif unhashed_last:
            c.blocks[rank, unhashed_last].free_next = block
            unhashed_last = block
        else:
            unhashed_first = unhashed_last = block
    if unhashed_last:
        c.blocks[rank, unhashed_last].free_next = s.ranks[rank].unhashed_top
        s.ranks[rank].unhashed_top = unhashed_first


@compiled
def fill(s: SchedulerArrays, c: PrefixCache, block_tokens: int) -> None:
    """Give running requests the blocks that they hold in an empty cache, between two steps.

    Free blocks then have no content: none that another request would have.
    """
    for rank in range(len(s.ranks)):
        for place in range(s.ranks[rank].running_count):
            request = s.running[rank, place]
            blocks = s.requests[request].blocks
            s.ranks[rank].free_blocks += blocks
            s.requests[request].blocks = s.requests[request].hashed = 0
            s.requests[request].seat = c.free_seats[rank, place]
            take_new(s, c, rank, request, blocks)
            computed = s.requests[request].computed
            index_full_blocks(s, c, rank, request, computed, block_tokens)
