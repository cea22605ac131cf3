"""What holding prefills back costs and gives: TTFT, TPOT and ITL of one mixed load, by policy.

The real LockstepScheduler, with a vLLM scheduler per rank, in a closed loop: the cost model says
how long each lockstep takes, and arrivals come by the same emulated clock. No chips run; tokens are
made up. The load is many chats and a few long documents, with Poisson arrivals from one seed, so
every policy sees the same. Prefix caching is off: no prompt shares a prefix with another here.
"""

import argparse
import logging
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from vllm.sampling_params import SamplingParams
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request
from vllm.v1.structured_output import StructuredOutputManager

from emulator.model import StepBatch, StepCost, StepCostModel
from serving.plugin.lockstep_scheduler import LockstepScheduler
from serving.plugin.merge import LockstepOutput
from serving.plugin.platform import deployment_of
from tests.serving.plugin.engine_config import engine_config, kv_pool

POLICIES = (
    "none",
    "staggered:2",
    "capped:1024",
    "capped:512",
    "capped:256",
    "capped:128",
    "balanced:64:128:1024",
    "balanced:128:128:1024",
    "balanced:64:256:1024",
)
MODEL = "qwen3-30b-a3b"
BLOCK_TOKENS = 32
BATCHED_TOKENS = 8_192  # vLLM's own default for a server
# The chips have KV for more; so many block objects a rank fit a small host, and none runs out here.
BLOCKS_PER_RANK = 16_000

# Means of the Azure 2023 conversation trace: 1,155 tokens in, 211 out.
CHAT_PROMPT_MEDIAN, CHAT_SPREAD = 820, 0.83
OUTPUT_MEDIAN, OUTPUT_SPREAD = 160, 0.75
LONG_SHARE = 0.06
LONG_PROMPT = (8_192, 30_000)


@dataclass(kw_only=True)
class Progress:
    """One request's times in emulated seconds."""

    arrival_s: float
    prompt_tokens: int
    output_tokens: int
    token_s: list[float] = field(default_factory=list)


@dataclass(kw_only=True)
class Outcome:
    """A whole run."""

    requests: list[Progress]
    emulated_s: float
    steps: int
    joules: float
    empty_rank_steps: int
    wall_s: float


def mixed_load(seed: int, *, requests: int, rate_per_s: float) -> list[Progress]:
    """Chats with lognormal lengths, and documents of 8 to 30 thousand tokens among them."""
    rng = np.random.default_rng(seed)
    arrivals_s = np.cumsum(rng.exponential(1.0 / rate_per_s, requests))
    prompts = rng.lognormal(np.log(CHAT_PROMPT_MEDIAN), CHAT_SPREAD, requests).clip(8, 8_000)
    outputs = rng.lognormal(np.log(OUTPUT_MEDIAN), OUTPUT_SPREAD, requests).clip(4, 1_000)
    is_long = rng.random(requests) < LONG_SHARE
    prompts = np.where(is_long, rng.uniform(*LONG_PROMPT, requests), prompts)
    return [
        Progress(arrival_s=float(arrival_s), prompt_tokens=int(prompt), output_tokens=int(output))
        for arrival_s, prompt, output in zip(arrivals_s, prompts, outputs, strict=True)
    ]


def step_batch(output: LockstepOutput, finished_rows: dict[str, int], ranks: int) -> StepBatch:
    """Make the cost model's batch of a decision; `finished_rows` get a token, by their rank."""
    rows = [row for rank, part in enumerate(output.by_rank) for row in _rows(rank, part)]
    rank, new, context = np.array(rows, dtype=np.int64).reshape(-1, 3).T
    logit_rows = np.bincount(list(finished_rows.values()), minlength=ranks).astype(np.int64)
    return StepBatch(
        ranks=ranks, rank=rank, new_tokens=new, context_tokens=context, logit_rows=logit_rows
    )


def _rows(rank: int, part: SchedulerOutput) -> Iterator[tuple[int, int, int]]:
    counts = part.num_scheduled_tokens
    for data in part.scheduled_new_reqs:
        yield rank, counts[data.req_id], data.num_computed_tokens
    cached = part.scheduled_cached_reqs
    for name, computed in zip(cached.req_ids, cached.num_computed_tokens, strict=True):
        yield rank, counts[name], computed


def play(policy: str, load: list[Progress], *, chips: int) -> Outcome:
    """Serve the load under `policy` until every request has its tokens."""
    started = time.perf_counter()
    config = engine_config(
        chips,
        max_model_len=32_768,
        max_num_batched_tokens=BATCHED_TOKENS,
        max_num_seqs=256,
        block_size=BLOCK_TOKENS,
        enable_prefix_caching=False,
        additional_config={
            "ultraserve": {"chips": chips, "model": MODEL, "prefill_policy": policy}
        },
    )
    deployment = deployment_of(config)
    cost_model = StepCostModel(deployment.system, deployment.time_model, deployment.partition)
    scheduler = LockstepScheduler(
        vllm_config=config,
        kv_cache_config=kv_pool(config, BLOCKS_PER_RANK),
        structured_output_manager=StructuredOutputManager(config),
        block_size=BLOCK_TOKENS,
        hash_block_size=BLOCK_TOKENS,
    )
    now_s, joules, steps, empty_rank_steps = 0.0, 0.0, 0, 0
    arriving = iter(enumerate(load))
    coming = next(arriving, None)
    while coming is not None or scheduler.has_unfinished_requests():
        if not scheduler.has_unfinished_requests() and coming is not None:
            idle_s = max(0.0, coming[1].arrival_s - now_s)
            joules += idle_s * cost_model.idle_chip_watts * chips
            now_s += idle_s
        while coming is not None and coming[1].arrival_s <= now_s:
            scheduler.add_request(_request(*coming))
            coming = next(arriving, None)
        output = scheduler.schedule()
        done = _given_tokens(scheduler, output)
        cost: StepCost = cost_model.cost(step_batch(output, done, len(scheduler.ranks)))
        now_s += cost.duration_ns / 1e9
        joules += cost.chip_joules
        steps += 1
        empty_rank_steps = output.empty_rank_steps
        for name in done:
            load[int(name)].token_s.append(now_s)
        scheduler.update_from_output(output, _tokens(output, done))
    return Outcome(
        requests=load,
        emulated_s=now_s,
        steps=steps,
        joules=joules,
        empty_rank_steps=empty_rank_steps,
        wall_s=time.perf_counter() - started,
    )


def _request(number: int, progress: Progress) -> Request:
    params = SamplingParams(max_tokens=progress.output_tokens, ignore_eos=True)
    prompt = [5] * progress.prompt_tokens
    return Request(str(number), prompt, params, None, arrival_time=progress.arrival_s)


def _given_tokens(scheduler: LockstepScheduler, output: LockstepOutput) -> dict[str, int]:
    """Requests whose context this step completes, with their rank."""
    return {
        name: number
        for number, (rank, part) in enumerate(zip(scheduler.ranks, output.by_rank, strict=True))
        for name in part.num_scheduled_tokens
        if not rank.requests[name].is_prefill_chunk
    }


def _tokens(output: LockstepOutput, done: dict[str, int]) -> ModelRunnerOutput:
    names = list(output.num_scheduled_tokens)
    return ModelRunnerOutput(
        req_ids=names,
        req_id_to_index={name: row for row, name in enumerate(names)},
        sampled_token_ids=[[7] if name in done else [] for name in names],
    )


HEADER = (
    f"{'policy':<22}{'TTFT ms p50':>12}{'p99':>7}{'chat p99':>10}{'long p99':>10}"
    f"{'TPOT ms p50':>13}{'p99':>7}{'ITL p50':>9}{'p99':>7}{'max':>7}"
    f"{'tok/s':>8}{'J/tok':>7}{'steps':>7}{'empty':>7}{'wall s':>8}"
)


def report_line(policy: str, outcome: Outcome) -> str:
    """One line of the table; times in emulated ms."""
    done = outcome.requests
    ttft = np.array([1e3 * (one.token_s[0] - one.arrival_s) for one in done])
    is_long = np.array([one.prompt_tokens >= LONG_PROMPT[0] for one in done])
    gaps = [1e3 * np.diff(one.token_s) for one in done]
    tpot = np.array([gap.mean() for gap in gaps])
    itl = np.concatenate(gaps)
    tokens = sum(len(one.token_s) for one in done)

    def quantile(values: NDArray[np.float64], q: int) -> float:
        return float(np.percentile(values, q))

    return (
        f"{policy:<22}{quantile(ttft, 50):>12.0f}{quantile(ttft, 99):>7.0f}"
        f"{quantile(ttft[~is_long], 99):>10.0f}{quantile(ttft[is_long], 99):>10.0f}"
        f"{quantile(tpot, 50):>13.2f}{quantile(tpot, 99):>7.2f}"
        f"{quantile(itl, 50):>9.2f}{quantile(itl, 99):>7.1f}{itl.max():>7.1f}"
        f"{tokens / outcome.emulated_s:>8.0f}{outcome.joules / tokens:>7.2f}"
        f"{outcome.steps:>7}{outcome.empty_rank_steps:>7}{outcome.wall_s:>8.1f}"
    )


def run() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--chips", type=int, default=16)
    parser.add_argument("--requests", type=int, default=900)
    parser.add_argument("--rate", type=float, default=60.0, help="arrivals per emulated second")
    parser.add_argument("--seed", type=int, default=11)
    parser.add_argument("policies", nargs="*", default=POLICIES)
    arguments = parser.parse_args()
    logging.disable(logging.WARNING)
    print(
        f"{MODEL} on {arguments.chips} chips, {arguments.requests} requests at "
        f"{arguments.rate:g}/s, {LONG_SHARE:.0%} of them documents; emulated times"
    )
    print(HEADER)
    for policy in arguments.policies:
        load = mixed_load(arguments.seed, requests=arguments.requests, rate_per_s=arguments.rate)
        print(report_line(policy, play(policy, load, chips=arguments.chips)), flush=True)


if __name__ == "__main__":
    run()
