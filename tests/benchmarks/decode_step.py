"""Wall time of one 4-chip decode step, split into vLLM, the chips' computing and the channel.

The engine runs in this process (vLLM's multiprocessing off): a step less the fleet's share is
vLLM's. The chips count their CPU seconds; four share this host's cores, so computing cannot be
shorter than their sum over the cores.
"""

import os

os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"

import time
from collections.abc import Iterator

import numpy as np
from vllm import LLM, SamplingParams

from emulator.data import SMALL_MOE_DIR
from serving.plugin.executor import UltraServeExecutor

REQUESTS = (1, 16, 64)
PROMPT_TOKENS = 64
STEPS = 60


def run() -> None:
    llm = LLM(
        model=str(SMALL_MOE_DIR),
        max_model_len=4_096,
        max_num_batched_tokens=1_024,
        enable_prefix_caching=False,
        additional_config={
            "ultraserve": {"chips": 4, "clock": "virtual", "model": "qwen3-30b-a3b"}
        },
    )
    try:
        print(
            f"{'requests':>8} {'step ms':>8} {'vLLM':>6} {'fleet':>6} "
            f"{'chips, CPU':>11} {'rest':>6}"
        )
        for requests in REQUESTS:
            rows = np.array(list(_steps(llm, requests)))
            step, fleet, chips = np.median(rows, axis=0) * 1e3
            floor = max(chips / min(requests, os.cpu_count() or 1), chips / (os.cpu_count() or 1))
            print(
                f"{requests:>8} {step:>8.2f} {step - fleet:>6.2f} {fleet:>6.2f} {chips:>11.2f} "
                f"{fleet - floor:>6.2f}"
            )
        print("rest: the fleet's wall less its chips' CPU over the cores: channel, hub, waiting")
    finally:
        llm.llm_engine.engine_core.shutdown()


def _steps(llm: LLM, requests: int) -> Iterator[tuple[float, float, float]]:
    """Seconds of (engine step, fleet, chips' CPU) for decode steps with all requests running."""
    engine = llm.llm_engine
    executor = engine.engine_core.engine_core.model_executor
    params = SamplingParams(temperature=0.0, max_tokens=STEPS + 8, ignore_eos=True)
    for index in range(requests):
        prompt = {
            "prompt_token_ids": [300 + (13 * p + 7 * index) % 700 for p in range(PROMPT_TOKENS)]
        }
        engine.add_request(f"decode-{requests}-{index}", prompt, params)
    for _ in range(4 + -(-requests * PROMPT_TOKENS // 1_024)):
        engine.step()
    for _ in range(STEPS - 8):
        cpu_before = executor.live_fleet().cpu_s()
        wall_before = _compute_wall_s(executor)
        started = time.perf_counter()
        engine.step()
        step_s = time.perf_counter() - started
        fleet_s = _compute_wall_s(executor) - wall_before
        yield step_s, fleet_s, executor.live_fleet().cpu_s() - cpu_before
    while engine.has_unfinished_requests():
        engine.step()


def _compute_wall_s(executor: UltraServeExecutor) -> float:
    return executor.live_engine().telemetry().compute_wall_s


if __name__ == "__main__":
    run()
