"""State of a lockstep's vLLM schedulers as flat arrays, for compiled functions.

The schedulers of all ranks are one tuple of arrays of records. A request is its number in order of
arrival; a KV block is its number on its rank, of which 0 is vLLM's null block and ends every list.
"""

from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from emulator.arrays import Float64s, Int32s, Int64s

Records = NDArray[np.void]

NONE: Final = -1
"""No request, no rank, no time."""

NEVER_NS: Final = int(np.iinfo(np.int64).max)

NO_CONTEXT_LIMIT: Final = 1 << 62

REQUEST: Final = np.dtype(
    [
        # What every step reads comes first, on one cache line:
        ("tokens", np.int64),  # prompt and generated
        ("computed", np.int64),  # vLLM's num_computed_tokens, the step under way included
        ("first_token_ns", np.int64),  # NONE without it
        ("tokens_left", np.int32),  # of output
        ("blocks", np.int32),  # of KV, held; while it waits, kept for KV on its way
        ("drafts", np.int16),  # that wait for their verification
        ("is_prefill", np.bool_),  # vLLM's is_prefill_chunk
        ("is_running", np.bool_),
        ("is_pushed", np.bool_),  # its KV came while its prompt was computed: to ask takes no time
        ("ended_on", np.int32),  # the rank, by its number in the pool
        ("rank", np.int64),  # NONE before it arrives and after its end
        ("waiting_next", np.int64),  # the request behind it in its rank's queue
        ("level", np.int32),  # of priority, 0 the most urgent; one level without priorities
        ("preemptions", np.int32),
        ("arrival_ns", np.int64),
        ("deadline_ns", np.int64),  # NONE without one
        ("last_token_ns", np.int64),
        ("received", np.int64),  # tokens whose KV comes with it from prefilling chips or ranks
        ("transfer_ns", np.int64),  # from asking for that KV until it is there
        ("there_ns", np.int64),  # when it is; NEVER_NS until it is asked for, 0 if none comes
        # With prefix caching:
        ("key_begin", np.int64),  # of its blocks' keys
        ("hashed", np.int64),  # its blocks that are in the cache's index
        ("hits", np.int64),  # tokens of its prompt that were cached when it began
        ("seat", np.int64),  # row of `table`
    ],
    align=True,
)
_NONE_YET: Final = ("rank", "waiting_next", "first_token_ns", "last_token_ns")
RANK: Final = np.dtype(
    [
        ("running_count", np.int64),
        ("running_tokens", np.int64),
        ("waiting_count", np.int64),
        ("waiting_first", np.int64),
        ("waiting_last", np.int64),
        ("free_blocks", np.int64),
        ("kept_for", np.int64),  # waiting requests that have blocks for KV on its way
        ("logit_rows", np.int64),  # tokens of the step under way
        ("number", np.int32),  # in the pool
        ("is_open", np.bool_),  # whether it takes requests
        ("deadline_ns", np.int64),  # none of its requests has an earlier one; or NONE
        # With prefix caching, free blocks: a stack of those without content, the first that was
        # never used, and a queue of those with content, the oldest first.
        ("unhashed_top", np.int32),
        ("fresh", np.int32),
        ("cached_first", np.int32),
        ("cached_last", np.int32),
    ]
)
ROW: Final = np.dtype(
    [
        ("rank", np.int64),
        ("new", np.int64),
        ("context", np.int64),
        ("request", np.int32),
        ("drafts", np.int32),
    ]
)
"""A request's part of a step: new tokens, and those computed before.

`drafts` of the new tokens are verified; below 0 they are padding, which is never right.
"""

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
    `context_tokens`: vLLM's `max_model_len`, which drafts do not exceed. `speculative_tokens` are
    those of EAGLE, of MTP modules and of drafting models, whose blocks are looked ahead for;
    `draft_slots`: slots of a step that each request takes for a drafting model, 0 for others.
    """

    seats: int
    step_tokens: int
    block_tokens: int
    long_prefill_tokens: int = 0
    by_priority: bool = False
    speculative_tokens: int = 0
    draft_slots: int = 0
    context_tokens: int = NO_CONTEXT_LIMIT


class Acceptance(NamedTuple):
    """How many drafts are right: the first ones, as far as draws by `seed` keep to the rates."""

    rates: Float64s  # of each draft whose forerunners are right, [speculative tokens]
    seed: int


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
    deadline_ns: Int64s | None = None,
) -> Records:
    """REQUEST [requests] before the first arrival, of [requests] in its order.

    `level`: of priority, 0 the most urgent; None is one level. `deadline_ns` may be NONE.
    """
    requests = _records(REQUEST, len(arrival_ns), **dict.fromkeys(_NONE_YET, NONE))
    requests["arrival_ns"] = arrival_ns
    requests["tokens"] = prompt_tokens
    requests["tokens_left"] = output_tokens
    requests["level"] = 0 if level is None else level
    requests["deadline_ns"] = NONE if deadline_ns is None else deadline_ns
    full_blocks = (prompt_tokens + output_tokens) // block_tokens
    requests["key_begin"] = full_blocks.cumsum() - full_blocks
    return requests


def pool_arrays(
    requests: Records, *, engines: int, ranks: int, kv_blocks: int, bounds: SchedulerBounds
) -> SchedulerArrays:
    """Schedulers of `engines` of `ranks` idle ranks, with `kv_blocks` each, vLLM's null block
    included: all but `requests` have a first axis [engines].
    """
    levels = int(requests["level"].max(initial=0)) + 1
    idle = dict.fromkeys(("waiting_first", "waiting_last", "deadline_ns"), NONE)
    of_ranks = _records(
        RANK, (engines, ranks), free_blocks=kv_blocks - 1, fresh=1, is_open=True, **idle
    )
    of_ranks["number"] = np.arange(engines * ranks).reshape(engines, ranks)
    return SchedulerArrays(
        requests=requests,
        ranks=of_ranks,
        rows=_records(ROW, (engines, ranks * bounds.seats)),
        running=np.zeros((engines, ranks, bounds.seats), dtype=np.int64),
        waiting_tokens=np.zeros((engines, ranks, levels), dtype=np.int64),
        waiting_requests=np.zeros((engines, ranks, levels), dtype=np.int64),
    )


def scheduler_arrays(
    requests: Records, *, ranks: int, kv_blocks: int, bounds: SchedulerBounds
) -> SchedulerArrays:
    """`pool_arrays` of one engine."""
    pool = pool_arrays(requests, engines=1, ranks=ranks, kv_blocks=kv_blocks, bounds=bounds)
    return engine_arrays(pool, 0)


def engine_arrays(pool: SchedulerArrays, number: int) -> SchedulerArrays:
    """One engine's of a pool, which they are a part of."""
    requests, *own = pool
    return SchedulerArrays(requests, *(each[number] for each in own))


def prefix_cache(
    block_keys: Int64s,
    arrays: SchedulerArrays,
    bounds: SchedulerBounds,
    kv_blocks: int,
    *,
    longest_tokens: int | None = None,
) -> PrefixCache:
    """An empty cache of `kv_blocks` on each rank, vLLM's null block included.

    `block_keys` has a key of each full block of prompt and reply, request by request: blocks of
    equal keys have equal content, and so have all before them. `longest_tokens`: of any request
    (default: of those in `arrays`).
    """
    ranks = len(arrays.ranks)
    requests = arrays.requests
    longest = longest_tokens
    if longest is None:
        longest = int((requests["tokens"] + requests["tokens_left"]).max(initial=0))
    longest += 2 * bounds.speculative_tokens
    chains = 1 << (kv_blocks - 1).bit_length()
    return PrefixCache(
        block_keys=block_keys,
        blocks=np.zeros((ranks, kv_blocks), dtype=BLOCK),
        buckets=np.zeros((ranks, chains), dtype=np.int32),
        free_seats=np.tile(np.arange(bounds.seats), (ranks, 1)),
        table=np.zeros((ranks, bounds.seats, longest // bounds.block_tokens + 1), dtype=np.int32),
    )


def _records(kind: np.dtype[np.void], shape: int | tuple[int, ...], **same: Any) -> Records:
    made = np.zeros(shape, dtype=kind)
    for field, value in same.items():
        made[field] = value
    return made
