"""Microseconds of the engine's process for a token, by part: 128 requests, timing only.

    python -m tests.benchmarks.token_path

The engine core runs in this process (vLLM's multiprocessing off) without an API in front; its steps
are timed by the processor's clock, so that other work on the host adds little.
"""

import os

os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"

import time
from collections.abc import Callable
from functools import wraps
from itertools import product
from typing import Any, Final

from vllm import LLM, SamplingParams

from emulator.data import SMALL_MOE_DIR
from serving.plugin.lockstep_scheduler import LockstepScheduler

REQUESTS: Final = 128
PROMPT_TOKENS: Final = 64
STEPS: Final = 200
CHIPS: Final = (1, 4)
ENGINES: Final = ("default", "fast")


class Part:
    """Processor seconds of one method's calls, without those of parts within it."""

    within: "Part | None" = None

    def __init__(self, name: str) -> None:
        self.name = name
        self.seconds = 0.0

    def watch(self, owner: Any, method: str) -> None:
        call: Callable[..., Any] = getattr(owner, method)

        @wraps(call)
        def timed(*args: Any, **kwargs: Any) -> Any:
            outer, Part.within = Part.within, self
            began_s = time.process_time()
            try:
                return call(*args, **kwargs)
            finally:
                spent_s = time.process_time() - began_s
                Part.within = outer
                self.seconds += spent_s
                if outer is not None:
                    outer.seconds -= spent_s

        setattr(owner, method, timed)


def run() -> None:
    """Print lines for each number of chips, each a rank, and each engine."""
    for chips, engine in product(CHIPS, ENGINES):
        llm = LLM(
            model=str(SMALL_MOE_DIR),
            max_model_len=4_096,
            max_num_seqs=REQUESTS // chips,
            enable_prefix_caching=False,
            additional_config={
                "ultraserve": {
                    "chips": chips,
                    "clock": "virtual",
                    "model": "qwen3-30b-a3b",
                    "computes": False,
                    "engine": engine,
                }
            },
        )
        try:
            for kind, sampling in (
                ("greedy", SamplingParams(temperature=0.0)),
                ("sampled", SamplingParams(temperature=0.8, top_p=0.9, seed=1)),
            ):
                print(f"{chips} chips, {engine}, {kind}: {_budget(llm, sampling)}", flush=True)
        finally:
            llm.llm_engine.engine_core.shutdown()


def _budget(llm: LLM, sampling: SamplingParams) -> str:
    """Microseconds a token of each part of decode steps."""
    core = llm.llm_engine.engine_core.engine_core
    sampling.max_tokens, sampling.ignore_eos = STEPS + 20, True
    names = []
    for index in range(REQUESTS):
        prompt = [300 + (13 * at + 7 * index) % 700 for at in range(PROMPT_TOKENS)]
        names.append(f"{index}-{sampling.temperature}")
        request = llm.llm_engine.input_processor.process_inputs(
            names[-1], {"prompt_token_ids": prompt}, sampling, supported_tasks=("generate",)
        )
        core.add_request(*core.preprocess_add_request(request))
    for _ in range(10):
        core.step()
    engine = core.model_executor.live_engine()
    parts = {
        "schedule": (core.scheduler, "schedule"),
        "tokens": (
            (core.model_executor._tokens, "step")
            if isinstance(core.scheduler, LockstepScheduler)
            else (core.scheduler._words, "draw")
        ),
        "cost": (engine._live.machine.cost_model, "cost"),
        "experts": (engine._experts, "after_step"),
        "meters": (engine._meters, "after_step"),
        "executor": (core.model_executor, "sample_tokens"),
        "update": (core.scheduler, "update_from_output"),
    }
    watched = []
    for name, (owner, method) in parts.items():
        watched.append(Part(name))
        watched[-1].watch(owner, method)
    began_s, tokens = time.process_time(), 0
    for _ in range(STEPS):
        outputs, _ = core.step()
        tokens += sum(len(each.new_token_ids) for of in outputs.values() for each in of.outputs)
    whole_s = time.process_time() - began_s
    for owner, method in parts.values():
        delattr(owner, method)
    core.abort_requests(names)
    core.step()
    figures = ", ".join(f"{each.name} {1e6 * each.seconds / tokens:.2f}" for each in watched)
    rest_s = whole_s - sum(each.seconds for each in watched)
    return (
        f"{1e6 * whole_s / tokens:.1f} us a token ({figures}, rest {1e6 * rest_s / tokens:.2f}), "
        f"{tokens:,} tokens"
    )


if __name__ == "__main__":
    run()
