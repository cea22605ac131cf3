"""Microseconds of the engine's process for a token, by part: 128 requests, timing only.

    python -m tests.benchmarks.token_path

The engine core runs in this process (vLLM's multiprocessing off) without an API in front; its steps
are timed by the processor's clock, so that other work on the host adds little.
"""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from itertools import product
from typing import Any, Final
from unittest import mock

from vllm import LLM, SamplingParams
from vllm.v1.serial_utils import MsgpackEncoder

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

    def __init__(self) -> None:
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


@dataclass(frozen=True, kw_only=True)
class TokenBudget:
    """Processor microseconds of a token, by part; `rest` is EngineCore's own and what it calls."""

    parts_us: dict[str, float]
    whole_us: float
    tokens: int

    def __str__(self) -> str:
        rest_us = self.whole_us - sum(self.parts_us.values())
        parts = {**self.parts_us, "rest": rest_us}
        words = ", ".join(f"{name} {part_us:.2f}" for name, part_us in parts.items())
        return f"{self.whole_us:.1f} us a token ({words}), {self.tokens:,} tokens"


GREEDY: Final = SamplingParams(temperature=0.0)
SAMPLED: Final = SamplingParams(temperature=0.8, top_p=0.9, seed=1)


def run() -> None:
    """Print lines for each number of chips, each a rank, and each engine."""
    for chips, engine in product(CHIPS, ENGINES):
        with in_this_process(chips, engine) as llm:
            for kind, sampling in (("greedy", GREEDY), ("sampled", SAMPLED)):
                budget = token_budget(llm, sampling)
                print(f"{chips} chips, {engine}, {kind}: {budget}", flush=True)


@contextmanager
def in_this_process(chips: int, engine: str) -> Iterator[LLM]:
    """An engine in this process, for timing alone."""
    with mock.patch.dict(os.environ, VLLM_ENABLE_V1_MULTIPROCESSING="0"):
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
        yield llm
    finally:
        llm.llm_engine.engine_core.shutdown()


def token_budget(llm: LLM, sampling: SamplingParams) -> TokenBudget:
    """That of decode steps with `REQUESTS`, what goes to the API process encoded too."""
    core: Any = llm.llm_engine.engine_core.engine_core
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
    engine, encoder = core.model_executor.live_engine(), MsgpackEncoder()
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
        "encode": (encoder, "encode"),
    }
    watched = {name: Part() for name in parts}
    for name, (owner, method) in parts.items():
        watched[name].watch(owner, method)
    began_s, tokens = time.process_time(), 0
    for _ in range(STEPS):
        outputs, _ = core.step()
        for each in outputs.values():
            encoder.encode(each)
            tokens += len(each.outputs)
    whole_s = time.process_time() - began_s
    for owner, method in parts.values():
        delattr(owner, method)
    core.abort_requests(names)
    core.step()
    return TokenBudget(
        parts_us={name: 1e6 * part.seconds / tokens for name, part in watched.items()},
        whole_us=1e6 * whole_s / tokens,
        tokens=tokens,
    )


if __name__ == "__main__":
    run()
