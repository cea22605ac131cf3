"""Whether a simulation of some traffic needs a prefix cache, from the start or later."""

import numpy as np

from loadgen.workloads.traffic import Traffic
from serving.traffic.engine_limits import EngineLimits


def shares(traffic: Traffic, limits: EngineLimits) -> bool:
    """Whether requests may find the blocks of others in a prefix cache."""
    return limits.prefix_caching and traffic.blocks is not None


def caches_when_full(traffic: Traffic, limits: EngineLimits) -> bool:
    """Whether requests that share nothing may be preempted, and then find their own blocks.

    Not for blocks that are kept for KV on its way alone: such requests are computed anew.
    """
    alone = limits.prefix_caching and traffic.blocks is None
    return alone and limits.kv_blocks_per_rank < blocks_in_use_max(traffic, limits)


def blocks_in_use_max(traffic: Traffic, limits: EngineLimits) -> int:
    """KV blocks from which on a rank never preempts, vLLM's own block included.

    Where prompts share nothing, only a preempted request finds blocks in the cache, its own.
    """
    tokens = traffic.prompt_tokens + traffic.output_tokens + 2 * limits.speculative_tokens
    blocks = -(-tokens // limits.block_tokens)
    return int(np.sort(blocks)[::-1][: limits.max_num_seqs].sum()) + 1
