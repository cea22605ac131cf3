"""Microseconds of a step's cost at 144 ranks: in arrays, and by the compiled kernels, in one run.

    python -m tests.benchmarks.step_cost

The first line says how long the first step took: kernels that the disk does not have are compiled.
"""

import time
from collections.abc import Callable
from typing import Final

import numpy as np

from emulator.specs.batch import StepBatch
from emulator.specs.calibration import ROOFLINE
from emulator.specs.models import MODELS
from emulator.specs.partition import Partition
from emulator.specs.shipped_fits import calibration_for
from emulator.specs.systems import SYSTEMS
from emulator.ultraserver.step_cost import StepCostModel
from tests.emulator.ultraserver.step_cost_reference import cost_slowly

SYSTEM: Final = SYSTEMS["trn3-nl72x2"]
RANKS: Final = 144
REQUESTS: Final = (32, 64, 128, 256)  # of a rank, at most; at least four fifths of it
CONTEXTS: Final = (100, 3_000)
PROMPTS: Final = (64, 1_024)
REPEATS: Final = 200
REPEATS_SLOWLY: Final = 8


def step(requests: int, *, prompts: bool) -> StepBatch:
    """A step in which all requests decode, or the last one of each rank computes a prompt."""
    generator = np.random.default_rng(requests)
    each = generator.integers(requests * 4 // 5, requests + 1, RANKS)
    rank = np.repeat(np.arange(RANKS), each)
    new, context = np.ones_like(rank), generator.integers(*CONTEXTS, len(rank))
    if prompts:
        last = np.cumsum(each) - 1
        new[last], context[last] = generator.integers(*PROMPTS, RANKS), 0
    return StepBatch(
        ranks=RANKS, rank=rank, new_tokens=new, context_tokens=context, logit_rows=each
    )


def shortest_us(cost: Callable[[], object], repeats: int) -> float:
    """The shortest of `repeats` calls: what else the host does only adds to the others."""
    shortest_s = float("inf")
    for _ in range(repeats):
        began_s = time.perf_counter()
        cost()
        shortest_s = min(shortest_s, time.perf_counter() - began_s)
    return shortest_s * 1e6


def run() -> None:
    """Print a line for each model, calibration and step."""
    first = True
    for model in ("qwen3-30b-a3b", "deepseek-v3"):
        for calibration in (ROOFLINE, calibration_for(SYSTEM.chip.name)):
            costs = StepCostModel(
                SYSTEM, MODELS[model], Partition(chips=RANKS, ep=RANKS), calibration=calibration
            )
            if first:
                began_s = time.perf_counter()
                costs.cost(step(1, prompts=False))
                print(f"first step: {time.perf_counter() - began_s:.1f} s\n")
                print(f"{'model':<14} {'calibration':<11} step            arrays  kernel   faster")
                first = False
            for requests in REQUESTS:
                for prompts in (False, True):
                    _line(
                        costs, f"{requests} {'mixed' if prompts else 'decode'}", requests, prompts
                    )


def _line(costs: StepCostModel, name: str, requests: int, prompts: bool) -> None:
    batch = step(requests, prompts=prompts)
    slow_us = shortest_us(lambda: cost_slowly(costs, batch), REPEATS_SLOWLY)
    fast_us = shortest_us(lambda: costs.cost(batch), REPEATS)
    print(
        f"{costs.model.name:<14} {costs.calibration.name:<11} {name:<12} {slow_us:>6.0f} us "
        f"{fast_us:>4.0f} us {slow_us / fast_us:>6.1f} x"
    )


if __name__ == "__main__":
    run()
