"""Rows as the benchmark ran them: closed loops on simulated schedulers, from idle engines on.

InferenceX's client (utils/bench_serving, and sa-bench of NVIDIA/srt-slurm) sends ten requests a
user, all users' first at once. Its warm-up of two requests a user ends before, so that engines are
idle at the start. Lengths are drawn as the client draws them: 80 to 100 % of the nominal ones.
"""

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final

import numpy as np

from emulator.arrays import Int64s
from emulator.specs.calibration import Calibration
from emulator.timing.draft_acceptance import draft_acceptance
from emulator.units import NS_PER_S
from serving.analysis.validate.closed_loop import StepTimes
from serving.analysis.validate.counted_rows import CountedRows, RowLoad
from serving.analysis.validate.launch_settings import (
    LaunchSettings,
    decode_settings,
    front_ends,
    prefill_settings,
)
from serving.analysis.validate.row_deployment import KV_BLOCK_TOKENS, Pool, handover_s
from serving.simulator.closed_loop import LoopRun, TimedPool, run_loop
from serving.simulator.closed_loop_kernel import ClientTimes, StepTable

ROUNDS: Final = 10
"""Requests of a user: num_prompts = 10 x max_concurrency."""
LEAST_LENGTH_SHARE: Final = 0.8
"""random_range_ratio: lengths are whole numbers from this share of the nominal one to it."""
TOKENS_MAX: Final = 200_000_000
"""Output tokens of a run: with more, users have fewer rounds, at least two. No public row has."""
PREFILL_BLOCKS: Final = 1 << 40
"""*Assumed*: prompts that are computed and sent away find room in their pool's caches."""
SEED: Final = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RowRunFigures:
    """Of one run; tokens are of prompts and outputs."""

    median_ttft_s: float
    mean_ttft_s: float
    p99_ttft_s: float
    mean_tpot_s: float
    median_tpot_s: float
    p99_tpot_s: float
    tokens_per_s: float


def run_rows(
    counted: CountedRows,
    times: StepTimes,
    calibrations: Sequence[Calibration],
    rows: Sequence[int],
) -> list[RowRunFigures]:
    """Run each of `rows`, by its place among the counted ones, in threads, one a core.

    `calibrations`: one for each of the counted stacks, which timed `times`.
    """

    def run(row: int) -> RowRunFigures:
        load, calibration = counted.loads[row], calibrations[counted.stack_of_row[row]]
        return run_load(load, _table(counted, times, row), calibration)

    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as threads:
        return list(threads.map(run, rows))


def run_load(load: RowLoad, table: StepTable, calibration: Calibration) -> RowRunFigures:
    """One run, with steps as long as `table` says."""
    prompts, outputs = lengths(load)
    run = loop_run(load, table, calibration, prompt_tokens=prompts, output_tokens=outputs)
    return RowRunFigures(
        median_ttft_s=float(np.median(run.ttft_s)),
        mean_ttft_s=float(run.ttft_s.mean()),
        p99_ttft_s=float(np.percentile(run.ttft_s, 99)),
        mean_tpot_s=float(run.tpot_s.mean()),
        median_tpot_s=float(np.median(run.tpot_s)),
        p99_tpot_s=float(np.percentile(run.tpot_s, 99)),
        tokens_per_s=float(prompts.sum() + outputs.sum()) / run.length_s,
    )


def lengths(load: RowLoad) -> tuple[Int64s, Int64s]:
    """Tokens of prompts and of outputs, each [requests] in their order."""
    deployment, rng = load.deployment, np.random.default_rng(SEED)
    rounds = TOKENS_MAX // (load.users * deployment.output_tokens_max)
    requests = load.users * min(ROUNDS, max(2, rounds))

    def drawn(most: int) -> Int64s:
        return rng.integers(max(1, int(LEAST_LENGTH_SHARE * most)), most + 1, requests)

    return drawn(deployment.prompt_tokens_max), drawn(deployment.output_tokens_max)


def loop_run(
    load: RowLoad,
    table: StepTable,
    calibration: Calibration,
    *,
    prompt_tokens: Int64s,
    output_tokens: Int64s,
) -> LoopRun:
    """The run of these requests, [requests] each."""
    deployment = load.deployment
    longest = deployment.prompt_tokens_max + deployment.output_tokens_max
    blocks = max(deployment.kv_blocks, -(-longest // KV_BLOCK_TOKENS) + 2)

    def timed(pool: Pool, settings: LaunchSettings, *, kv_blocks: int, drafts: int) -> TimedPool:
        return TimedPool(
            engines=pool.workers,
            ranks=pool.partition.ranks,
            seats=settings.seats,
            step_tokens=settings.step_tokens,
            kv_blocks=kv_blocks,
            block_tokens=KV_BLOCK_TOKENS,
            acceptance=draft_acceptance("mtp").rates(drafts) if drafts else (),
            table=table,
            rules=settings.rules,
        )

    prefill = None
    if deployment.disaggregated:
        settings = prefill_settings(load)
        prefill = timed(deployment.prefill, settings, kv_blocks=PREFILL_BLOCKS, drafts=0)
    decode = decode_settings(load)
    return run_loop(
        timed(deployment.decode, decode, kv_blocks=blocks, drafts=deployment.draft_tokens),
        prefill,
        ClientTimes(
            users=load.users,
            request_ns=round(calibration.front_end_request_ns.value) * front_ends(deployment),
            token_ns=round(calibration.front_end_token_ns.value),
            transfer_ns=round(handover_s(deployment) * NS_PER_S),
        ),
        prompt_tokens=prompt_tokens,
        output_tokens=output_tokens,
        seed=SEED,
    )


def _table(counted: CountedRows, times: StepTimes, row: int) -> StepTable:
    full = float(counted.prompts_of_pass[row])
    return StepTable(
        batches=counted.batches[row],
        decode_ns=times.decode_s[row] * NS_PER_S,
        prompt_tokens=counted.loads[row].deployment.prompt_tokens,
        full_prompts=full,
        solo_ns=float(times.solo_s[row]) * NS_PER_S,
        full_ns=float(times.full_s[row]) * full * NS_PER_S,
        solo_added_ns=float(times.solo_steal_s[row]) * NS_PER_S,
        full_added_ns=float(times.full_steal_s[row]) * full * NS_PER_S,
    )
