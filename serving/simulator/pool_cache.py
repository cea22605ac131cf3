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
    return PrefixCache(block_keys, *(np.stack([each] * len(pool.ranks)) for each in one[1:]))


def engine_cache(caches: PrefixCache, number: int) -> PrefixCache:
    """One engine's, which is a part of them."""
    return PrefixCache(caches.block_keys, *(each[number] for each in caches[1:]))
