"""What holding prefills back costs and gives: TTFT, TPOT and ITL of one mixed load, by policy.

The load is many chats and a few long documents, with Poisson arrivals from one seed, so every
policy sees the same; `serving.simulator` serves it.
"""

import argparse
import logging
import time

import numpy as np
from numpy.typing import NDArray

from emulator.specs.calibration import ROOFLINE
from emulator.specs.models import model_by_name
from emulator.specs.partition import Partition
from emulator.specs.systems import system_by_name
from emulator.ultraserver.step_cost import StepCostModel
from loadgen.workloads.traffic import Traffic
from serving.settings import Settings
from serving.simulator import SimulatedDeployment, simulate
from serving.traffic.engine_limits import EngineLimits
from serving.traffic.serving_run import ServingRun

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
# The chips have KV for more; so many blocks a rank are enough that none runs out here.
BLOCKS_PER_RANK = 16_000

# Means of the Azure 2023 conversation trace: 1,155 tokens in, 211 out.
CHAT_PROMPT_MEDIAN, CHAT_SPREAD = 820, 0.83
OUTPUT_MEDIAN, OUTPUT_SPREAD = 160, 0.75
LONG_SHARE = 0.06
LONG_PROMPT = (8_192, 30_000)


def mixed_load(seed: int, *, requests: int, rate_per_s: float) -> Traffic:
    """Chats with lognormal lengths, and documents of 8 to 30 thousand tokens."""
    rng = np.random.default_rng(seed)
    arrival_s = np.cumsum(rng.exponential(1.0 / rate_per_s, requests))
    prompts = rng.lognormal(np.log(CHAT_PROMPT_MEDIAN), CHAT_SPREAD, requests).clip(8, 8_000)
    outputs = rng.lognormal(np.log(OUTPUT_MEDIAN), OUTPUT_SPREAD, requests).clip(4, 1_000)
    is_long = rng.random(requests) < LONG_SHARE
    prompts = np.where(is_long, rng.uniform(*LONG_PROMPT, requests), prompts)
    return Traffic(
        arrival_s=arrival_s,
        prompt_tokens=prompts.astype(np.int64),
        output_tokens=outputs.astype(np.int64),
    )


def play(policy: str, load: Traffic, cost_model: StepCostModel) -> ServingRun:
    """Serve the load under `policy` to its end."""
    limits = EngineLimits(
        max_num_batched_tokens=BATCHED_TOKENS,
        max_num_seqs=256,
        kv_blocks_per_rank=BLOCKS_PER_RANK,
        block_tokens=BLOCK_TOKENS,
        prefill_policy=policy,
    )
    return simulate(SimulatedDeployment(cost_model=cost_model, limits=limits), load).served


HEADER = (
    f"{'policy':<22}{'TTFT ms p50':>12}{'p99':>7}{'chat p99':>10}{'long p99':>10}"
    f"{'TPOT ms p50':>13}{'p99':>7}{'ITL p50':>9}{'p99':>7}{'max':>7}"
    f"{'tok/s':>8}{'J/tok':>7}{'steps':>7}{'empty':>7}{'wall s':>8}"
)


def report_line(policy: str, run: ServingRun, wall_s: float) -> str:
    """One line of the table; times in emulated ms."""
    is_long = run.traffic.prompt_tokens >= LONG_PROMPT[0]
    ttft, tpot, itl = 1e3 * run.ttft_s, 1e3 * run.tpot_s, 1e3 * run.itl_s()

    def quantile(values: NDArray[np.float64], q: int) -> float:
        return float(np.percentile(values, q))

    return (
        f"{policy:<22}{quantile(ttft, 50):>12.0f}{quantile(ttft, 99):>7.0f}"
        f"{quantile(ttft[~is_long], 99):>10.0f}{quantile(ttft[is_long], 99):>10.0f}"
        f"{quantile(tpot, 50):>13.2f}{quantile(tpot, 99):>7.2f}"
        f"{quantile(itl, 50):>9.2f}{quantile(itl, 99):>7.1f}{itl.max():>7.1f}"
        f"{run.tokens_per_s:>8.0f}{run.joules_per_token:>7.2f}"
        f"{run.steps:>7}{run.empty_rank_steps:>7}{wall_s:>8.1f}"
    )


def run() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--chips", type=int, default=16)
    parser.add_argument("--requests", type=int, default=900)
    parser.add_argument("--rate", type=float, default=60.0, help="arrivals per emulated second")
    parser.add_argument("--seed", type=int, default=11)
    parser.add_argument("policies", nargs="*", default=POLICIES)
    arguments = parser.parse_args()
    logging.disable(logging.WARNING)
    cost_model = StepCostModel(
        system_by_name(Settings().system),
        model_by_name(MODEL),
        Partition(chips=arguments.chips, ep=arguments.chips),
        calibration=ROOFLINE,
    )
    load = mixed_load(arguments.seed, requests=arguments.requests, rate_per_s=arguments.rate)
    print(
        f"{MODEL} on {arguments.chips} chips, {arguments.requests} requests at "
        f"{arguments.rate:g}/s, {LONG_SHARE:.0%} of them documents; emulated times"
    )
    print(HEADER)
    for policy in arguments.policies:
        started = time.perf_counter()
        served = play(policy, load, cost_model)
        print(report_line(policy, served, time.perf_counter() - started), flush=True)


if __name__ == "__main__":
    run()
