"""State of a lockstep's vLLM schedulers as flat arrays, for compiled functions.

The schedulers of all ranks are one tuple of arrays of records. A request is its number in order of
arrival; a KV block is its number on its rank, of which 0 is vLLM's null block and ends every list.
"""

from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

Int64s = NDArray[np.int64]
Int32s = NDArray[np.int32]
Records = NDArray[np.void]

NONE: Final = -1
"""No request, no rank."""

REQUEST: Final = np.dtype(
    [
        ("arrival_ns", np.int64),
        ("tokens", np.int64),  # prompt and generated
        ("tokens_left", np.int64),  # of output
        ("computed", np.int64),  # vLLM's num_computed_tokens, the step under way included
        ("blocks", np.int64),  # KV blocks held
        ("preemptions", np.int64),
        ("level", np.int64),  # of priority, 0 the most urgent; one level without priorities
        ("rank", np.int64),  # NONE before it arrives and after its end
        ("is_prefill", np.bool_),  # vLLM's is_prefill_chunk
        ("is_running", np.bool_),
        ("waiting_next", np.int64),  # the request behind it in its rank's queue
        ("first_token_ns", np.int64),  # NONE without it
        ("last_token_ns", np.int64),
        # With prefix caching:
        ("key_begin", np.int64),  # of its blocks' keys
        ("hashed", np.int64),  # its blocks that are in the cache's index
        ("hits", np.int64),  # tokens of its prompt that were cached when it began
        ("seat", np.int64),  # row of `table`
    ]
)
_NONE_YET: Final = ("rank", "waiting_next", "first_token_ns", "last_token_ns")
RANK: Final = np.dtype(
    [
        ("up", np.bool_),
        ("running_count", np.int64),
        ("running_tokens", np.int64),
        ("waiting_count", np.int64),
        ("waiting_first", np.int64),
        ("waiting_last", np.int64),
        ("free_blocks", np.int64),
        ("logit_rows", np.int64),  # tokens of the step under way
        # With prefix caching, free blocks: a stack of those without content, the first that was
        # never used, and a queue of those with content, the oldest first.
        ("unhashed_top", np.int32),
        ("fresh", np.int32),
        ("cached_first", np.int32),
        ("cached_last", np.int32),
    ]
)
ROW: Final = np.dtype(
    [("rank", np.int64), ("request", np.int64), ("new", np.int64), ("context", np.int64)]
)
"""A request's part of a step: new tokens, and those computed before."""

BLOCK: Final = np.dtype(
    [
        ("key", np.int64),  # of its content
        ("references", np.int32),
        ("chain_next", np.int32),  # in its chain of the index
        ("free_next", np.int32),  # in the stack or the queue
        ("free_before", np.int32),  # in the queue
        ("is_hashed", np.bool_),
    ]
)


class SchedulerBounds(NamedTuple):
    """What the configuration says, the same on all ranks.

    `step_tokens`: vLLM's `max_num_scheduled_tokens`. `long_prefill_tokens` 0 sets no limit.
    """

    seats: int
    step_tokens: int
    block_tokens: int
    long_prefill_tokens: int = 0
    by_priority: bool = False


class SchedulerArrays(NamedTuple):
    """Requests and ranks."""

    requests: Records  # REQUEST [requests]
    ranks: Records  # RANK [ranks]
    rows: Records  # ROW of the step under way, [ranks * seats]
    running: Int64s  # in vLLM's order, [ranks, seats]
    waiting_tokens: Int64s  # [ranks, levels]
    waiting_requests: Int64s  # [ranks, levels]


class PrefixCache(NamedTuple):
    """KV blocks and the index of their contents. Without it, blocks are only counted."""

    block_keys: Int64s  # of full blocks, prompt and reply, request by request: [keys]
    blocks: Records  # BLOCK [ranks, blocks]
    buckets: Int32s  # first block of each chain of the index, [ranks, buckets]
    free_seats: Int64s  # a stack, [ranks, seats]
    table: Int32s  # blocks of a running request, [ranks, seats, blocks of the longest]


def request_records(
    *,
    arrival_ns: Int64s,
    prompt_tokens: Int64s,
    output_tokens: Int64s,
    block_tokens: int,
    level: Int64s | None = None,
) -> Records:
    """REQUEST [requests] before the first arrival, of [requests] in its order.

    `level`: of priority, 0 the most urgent; None is one level.
    """
    requests = _records(REQUEST, len(arrival_ns), **dict.fromkeys(_NONE_YET, NONE))
    requests["arrival_ns"] = arrival_ns
    requests["tokens"] = prompt_tokens
    requests["tokens_left"] = output_tokens
    requests["level"] = 0 if level is None else level
    full_blocks = (prompt_tokens + output_tokens) // block_tokens
    requests["key_begin"] = full_blocks.cumsum() - full_blocks
    return requests


def scheduler_arrays(
    requests: Records, *, ranks: int, kv_blocks: int, bounds: SchedulerBounds
) -> SchedulerArrays:
    """Schedulers of `ranks` idle ranks, with `kv_blocks` each, vLLM's null block included."""
    levels = int(requests["level"].max(initial=0)) + 1
    queue_ends = {"waiting_first": NONE, "waiting_last": NONE}
    return SchedulerArrays(
        requests=requests,
        ranks=_records(RANK, ranks, up=True, free_blocks=kv_blocks - 1, fresh=1, **queue_ends),
        rows=_records(ROW, ranks * bounds.seats),
        running=np.zeros((ranks, bounds.seats), dtype=np.int64),
        waiting_tokens=np.zeros((ranks, levels), dtype=np.int64),
        waiting_requests=np.zeros((ranks, levels), dtype=np.int64),
    )


def prefix_cache(
    block_keys: Int64s, arrays: SchedulerArrays, bounds: SchedulerBounds, kv_blocks: int
) -> PrefixCache:
    """An empty cache of `kv_blocks` on each rank, vLLM's null block included.

    `block_keys` has a key of each full block of prompt and reply, request by request: blocks of
    equal keys have equal content, and so have all before them.
    """
    ranks = len(arrays.ranks)
    requests = arrays.requests
    longest = int((requests["tokens"] + requests["tokens_left"]).max(initial=0))
    chains = 1 << (kv_blocks - 1).bit_length()
    return PrefixCache(
        block_keys=block_keys,
        blocks=np.zeros((ranks, kv_blocks), dtype=BLOCK),
        buckets=np.zeros((ranks, chains), dtype=np.int32),
        free_seats=np.tile(np.arange(bounds.seats), (ranks, 1)),
        table=np.zeros((ranks, bounds.seats, longest // bounds.block_tokens + 1), dtype=np.int32),
    )


def _records(kind: np.dtype[np.void], count: int, **same: Any) -> Records:
    made = np.zeros(count, dtype=kind)
    for field, value in same.items():
        made[field] = value
    return made
