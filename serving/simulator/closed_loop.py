"""Runs of a closed loop on engines whose steps take given times: a benchmark's, as it was made."""

from dataclasses import dataclass

import numpy as np

from emulator.arrays import Float64s, Int64s
from emulator.units import NS_PER_S
from serving.simulator.closed_loop_kernel import (
    COUNTS,
    ClientTimes,
    EnginePoolState,
    StackRules,
    StepTable,
    run_closed_loop,
)
from serving.simulator.scheduler_arrays import (
    NEVER_NS,
    NONE,
    Acceptance,
    SchedulerBounds,
    request_records,
    scheduler_arrays,
)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TimedPool:
    """Equal `engines` of `ranks` each, with a limit of each rank's sequences and KV blocks.

    `step_tokens`: prompt tokens of a rank in a step. `acceptance`: of drafts, none without.
    """

    engines: int
    ranks: int
    seats: int
    step_tokens: int
    kv_blocks: int
    block_tokens: int
    acceptance: tuple[float, ...]
    table: StepTable
    rules: StackRules


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LoopRun:
    """Times of each request as its user sees them, [requests], and the run's length."""

    ttft_s: Float64s
    tpot_s: Float64s
    length_s: float


def run_loop(
    pool: TimedPool,
    prefill: TimedPool | None,
    times: ClientTimes,
    *,
    prompt_tokens: Int64s,
    output_tokens: Int64s,
    seed: int = 0,
) -> LoopRun:
    """Send all requests, [requests] in order, `times.users` at a time from 0 on.

    `prefill`: engines that compute prompts for `pool`; None where it computes its own.
    """
    received = prefill is not None
    own = _state(pool, prompt_tokens, output_tokens, received=received, seed=seed)
    first = own
    if prefill is not None:
        ones = np.ones_like(output_tokens)
        first = _state(prefill, prompt_tokens, ones, received=False, seed=seed)
    sent = np.zeros((len(prompt_tokens) if received else 0, 2), dtype=np.int64)
    run_closed_loop((first, own), times, np.zeros(1, dtype=COUNTS), sent)
    requests = own.s.requests
    last_ns, first_ns = requests["last_token_ns"], requests["first_token_ns"]
    assert (last_ns != NONE).all(), "a request never ends"
    return LoopRun(
        ttft_s=(first_ns + times.token_ns - requests["arrival_ns"]) / NS_PER_S,
        tpot_s=(last_ns - first_ns) / np.maximum(output_tokens - 1, 1) / NS_PER_S,
        length_s=(int(last_ns.max()) + times.token_ns) / NS_PER_S,
    )


def _state(
    pool: TimedPool, prompt_tokens: Int64s, output_tokens: Int64s, *, received: bool, seed: int
) -> EnginePoolState:
    drafts = len(pool.acceptance)
    bounds = SchedulerBounds(
        seats=pool.seats,
        step_tokens=pool.step_tokens + pool.seats * (1 + drafts),
        block_tokens=pool.block_tokens,
        speculative_tokens=drafts,
    )
    requests = request_records(
        arrival_ns=np.zeros(len(prompt_tokens), dtype=np.int64),
        prompt_tokens=prompt_tokens,
        output_tokens=output_tokens,
        block_tokens=pool.block_tokens,
    )
    if received:
        requests["received"] = prompt_tokens - 1  # the last is computed here
    ranks = pool.engines * pool.ranks
    arrays = scheduler_arrays(requests, ranks=ranks, kv_blocks=pool.kv_blocks, bounds=bounds)

    def of_engines(value: int) -> Int64s:
        return np.full(pool.engines, value, dtype=np.int64)

    return EnginePoolState(
        s=arrays,
        bounds=bounds,
        acceptance=Acceptance(rates=np.array(pool.acceptance, dtype=np.float64), seed=seed),
        table=pool.table,
        rules=pool.rules,
        prompt_tokens=pool.step_tokens,
        received=received,
        end_ns=of_engines(NEVER_NS),
        rows=of_engines(0),
        decode_ns=of_engines(0),
        held=of_engines(0),
        untaken=of_engines(0),
        waited=of_engines(0),
        inbox=np.full((pool.engines, 2), NONE, dtype=np.int64),
        behind=np.full(len(requests), NONE, dtype=np.int64),
        came_ns=np.zeros(len(requests), dtype=np.int64),
        begun_ns=of_engines(0),
        given=np.zeros(pool.ranks * pool.seats * (1 + drafts), dtype=np.int32),
        by_rank=np.zeros((3, pool.ranks), dtype=np.int64),
    )
