"""The prefix cache beside vLLM's own, over Mooncake's conversation trace on one engine.

    python -m tests.benchmarks.prefix_hits [--requests N]

Both serve the same requests in the same virtual time: the simulator, and vLLM's own schedulers with
their KV cache managers, in Python. The trace holds many times the engine's KV blocks, so that most
of what is cached is evicted again: vLLM's evictions are counted. All of it takes some five minutes
of a core. The trace lies in ../shared/traces, or where ULTRASERVE_TRACES says.
"""

import argparse
import logging
import time
from collections.abc import Sequence
from typing import Final
from unittest.mock import patch

import numpy as np
from vllm.v1.core.block_pool import BlockPool
from vllm.v1.core.kv_cache_utils import KVCacheBlock

from emulator.specs.batch import StepBatch
from emulator.specs.partition import Partition
from loadgen.workloads.traffic import Traffic
from serving.simulator import SchedulerLimits, SimulatedDeployment, simulate
from tests.benchmarks.peers import trace_path
from tests.serving.simulator import vllm_serving

MODEL: Final = "gpt-oss-120b"
"""Its context holds every request of the trace."""
CHIPS: Final = 4
SEATS: Final = 256


class HitCounts:
    """Of a run by vLLM's schedulers: tokens that it computed, and cached blocks that it evicted."""

    def __init__(self) -> None:
        self.computed_tokens = 0
        self.evicted_blocks = 0

    def step(self, _: object, batch: StepBatch, **__: object) -> None:
        """Count a step's tokens."""
        self.computed_tokens += int(batch.new_tokens.sum())

    def evict(self, pool: BlockPool, block: KVCacheBlock) -> bool:
        """vLLM's `BlockPool._maybe_evict_cached_block`, counted."""
        evicted = _evict(pool, block)
        self.evicted_blocks += evicted
        return evicted


_evict = BlockPool._maybe_evict_cached_block


def hit_rates(traffic: Traffic, deployment: SimulatedDeployment) -> bool:
    """Print both; returns whether they agree in every token."""
    begun_s = time.process_time()
    found = simulate(deployment, traffic).served
    ours_s = time.process_time() - begun_s
    counts = HitCounts()

    def evict(pool: BlockPool, block: KVCacheBlock) -> bool:
        return counts.evict(pool, block)

    with patch.object(BlockPool, "_maybe_evict_cached_block", evict):
        theirs = vllm_serving.serve_in_virtual_time(
            traffic, deployment.cost_model, deployment.limits, on_step=counts.step
        )
    theirs_s = time.process_time() - begun_s - ours_s
    prompt_tokens = int(traffic.prompt_tokens.sum())
    # A request computes all but the cached of its prompt, and all but the last of its reply.
    needed_tokens = prompt_tokens + int((traffic.output_tokens - 1).sum())
    hit_tokens = needed_tokens - counts.computed_tokens
    times_equal = np.array_equal(found.last_token_s, theirs.last_token_s)
    ranks, blocks = deployment.cost_model.partition.ranks, deployment.limits.kv_blocks_per_rank
    print(
        f"{len(traffic):,} requests, {prompt_tokens:,} prompt tokens, {ranks} ranks of "
        f"{blocks:,} KV blocks\n"
        f"simulator  {found.hit_tokens:,} tokens cached, {found.hit_tokens / prompt_tokens:.4%}, "
        f"{found.preemptions} preemptions, {found.steps:,} steps, {ours_s:.1f} s of a core\n"
        f"vLLM       {hit_tokens:,} tokens cached, {hit_tokens / prompt_tokens:.4%}, "
        f"{theirs.preemptions} preemptions, {theirs.steps:,} steps, {theirs_s:.0f} s of a core, "
        f"{counts.evicted_blocks:,} cached blocks evicted\n"
        f"last tokens {'at the same nanoseconds' if times_equal else 'AT OTHER TIMES'}"
    )
    return times_equal and hit_tokens == found.hit_tokens


def run(arguments: Sequence[str] | None = None) -> None:
    """Print both rates; exits with 1 where they differ."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.prefix_hits")
    parser.add_argument("--requests", type=int, help="the first so many (default: all)")
    args = parser.parse_args(arguments)
    logging.disable(logging.WARNING)
    trace = trace_path()
    if not trace.exists():
        print(f"{trace} is not there: nothing is said of prefixes")
        return
    traffic = Traffic.recorded(trace)
    deployment = SimulatedDeployment.of(
        "trn3-nl72x2",
        MODEL,
        Partition(chips=CHIPS, ep=CHIPS, lnc=2),
        schedulers=SchedulerLimits(max_num_seqs=SEATS),
    )
    part = traffic if args.requests is None else traffic.first(args.requests)
    if not hit_rates(part, deployment):
        raise SystemExit(1)


if __name__ == "__main__":
    run()
