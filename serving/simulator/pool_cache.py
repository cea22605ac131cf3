"""Prefix caches of several engines beside each other: all but keys have a first axis [engines]."""

import numpy as np

from emulator.arrays import Int64s
from serving.simulator.scheduler_arrays import (
    PrefixCache,
    SchedulerArrays,
    SchedulerBounds,
    engine_arrays,
    prefix_cache,
)


def pool_cache(
    block_keys: Int64s, pool: SchedulerArrays, bounds: SchedulerBounds, kv_blocks: int
) -> PrefixCache:
    """`prefix_cache` of each engine of a pool."""
    one = prefix_cache(block_keys, engine_arrays(pool, 0), bounds, kv_blocks)
    count = len(pool.ranks)
    return PrefixCache(
        block_keys=block_keys,
        blocks=np.stack([one.blocks] * count),
        buckets=np.stack([one.buckets] * count),
        free_seats=np.stack([one.free_seats] * count),
        table=np.stack([one.table] * count),
    )


def engine_cache(caches: PrefixCache, number: int) -> PrefixCache:
    """One engine's, which is a part of them."""
    keys, *own = caches
    return PrefixCache(keys, *(each[number] for each in own))
