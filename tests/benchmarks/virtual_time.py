"""Virtual time: the compiled schedulers against vLLM's own, and a large run from the shell.

The first two lines serve the same requests in one process; the third is `ultraserve simulate` of
50,000 requests of 512 and 512 tokens on 144 ranks, start and compiling included.
"""

import json
import logging
import os
import subprocess
import sys
import time
from collections.abc import Callable

import numpy as np

from emulator.specs.partition import Partition
from loadgen.workloads.traffic import Traffic
from serving.simulator import SchedulerLimits, SimulatedDeployment, simulate
from tests.serving.simulator import vllm_serving

RANKS, RATE_PER_S, TOKENS = 144, 1_440, 512
FEW, MANY = 300, 50_000


def traffic(requests: int) -> Traffic:
    """Even arrivals of equal lengths."""
    lengths = np.full(requests, TOKENS)
    return Traffic(
        arrival_s=np.arange(requests) / RATE_PER_S, prompt_tokens=lengths, output_tokens=lengths
    )


def seconds_of(serve: Callable[[], object]) -> float:
    """Wall seconds of one call."""
    begun_s = time.perf_counter()
    serve()
    return time.perf_counter() - begun_s


def run() -> None:
    logging.disable(logging.WARNING)
    deployment = SimulatedDeployment.of(
        "trn3-nl72x2",
        "qwen3-30b-a3b",
        Partition(chips=RANKS, ep=RANKS, lnc=2),
        schedulers=SchedulerLimits(max_num_seqs=256),
    )
    few = traffic(FEW)
    simulate(deployment, few)  # compiles
    compiled_s = min(seconds_of(lambda: simulate(deployment, few)) for _ in range(3))
    terms = (few, deployment.cost_model, deployment.limits)
    vllm_s = seconds_of(lambda: vllm_serving.serve_in_virtual_time(*terms))
    print(f"{FEW} requests on {RANKS} ranks, compiled schedulers   {compiled_s:8.2f} s")
    print(f"{FEW} requests on {RANKS} ranks, vLLM's schedulers     {vllm_s:8.2f} s")
    print(f"ratio                                            {vllm_s / compiled_s:8.1f}")
    command = (
        *(sys.executable, "-m", "serving.main", "simulate", "--model", "qwen3-30b-a3b"),
        *("--chips", str(RANKS), "--requests", str(MANY), "--rate", str(RATE_PER_S)),
        *("--arrivals", "constant", "--input", str(TOKENS), "--output", str(TOKENS), "--json"),
    )
    begun_s = time.perf_counter()
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    whole_s = time.perf_counter() - begun_s
    report = json.loads(done.stdout)
    print(
        f"{MANY:,} requests: {report['wall_s']:.2f} s for {report['steps']:,} steps, "
        f"{report['compile_s']:.2f} s to compile or read, {whole_s:.2f} s from the shell "
        f"on {os.cpu_count()} cores"
    )


if __name__ == "__main__":
    run()
