"""Prefix-cache hits of a request on a rank, from vLLM's KV cache manager."""

from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.request import Request


def prefix_hit_tokens(rank: Scheduler, request: Request) -> int:
    """Cached tokens of the request on the rank; the last one is computed anyway."""
    manager = rank.kv_cache_manager
    hashes = request.block_hashes
    if not hashes or not manager.prefix_cache_lookup_enabled(request):
        return 0
    # On most ranks the first block is not there, and asking for it alone is several times cheaper.
    if manager.block_pool.get_cached_block(hashes[0], [0]) is None:
        return 0
    hit = manager.coordinator.find_longest_cache_hit(hashes, request.num_tokens - 1)
    return int(hit[1])
