"""Finds the dilation at which this host keeps up with the emulated machine.

Runs representative steps on the live chips before the engine is ready, and compares their wall time
with what the cost model says they take. The result is fixed for the run.
"""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from emulator.model import StepBatch, StepCostModel
from emulator.specs.sampling import SamplingSpec
from emulator.specs.step import NewRequest, RankOutput, RankStep, Scheduled
from emulator.units import NS_PER_S

SAFETY = 1.25
"""Assumed head-room over the measured ratio: other programs share the host's cores."""

HOST_STEP_S = 0.004
HOST_REQUEST_STEP_S = 0.000_2
"""Assumed wall time per step, and per request in it, of vLLM's scheduler, its front end and a
client on the same cores; above what the benchmark of a decode step measures of vLLM's share."""

PROMPT_TOKENS_MAX = 2_048
BATCHED_TOKENS_MAX = 8_192
"""Bounds of the prefills that are considered: one prompt, and all prompts of a rank's step."""

MEASURED_TOKENS_MAX = 8_192
"""All ranks together compute so many tokens in a step that is measured; what a larger one would
take is in proportion. 144 ranks' largest steps would take minutes."""

SHORT_CONTEXT_TOKENS = 64
LONG_CONTEXT_TOKENS = 1_024
FEW_REQUESTS = 16

ATTEMPTS = 4

Step = Callable[[Sequence[RankStep], Mapping[int, NDArray[np.int32]]], Mapping[int, RankOutput]]


def calibrate(
    step: Step,
    cost: StepCostModel,
    *,
    ranks: int,
    block_tokens: int,
    kv_blocks: int,
    max_model_len: int,
    max_batched_tokens: int,
    max_requests: int,
) -> float:
    """Return the dilation, at least 1, rounded up to two significant digits.

    Tried are a step full of prefill, one decode a rank, a few, and as many as a rank may run at a
    long context; what is slowest against its emulated time counts. `step` computes on chips whose
    KV blocks hold nothing of value; they are free afterwards.
    """
    host = _Host(step=step, cost=cost, ranks=ranks, block_tokens=block_tokens)
    room_tokens = min(max_model_len - 1, (kv_blocks - 1) * block_tokens - 1)
    prompt_tokens = min(PROMPT_TOKENS_MAX, room_tokens, max_batched_tokens)
    prompts = min(BATCHED_TOKENS_MAX, max_batched_tokens) // prompt_tokens
    ratios = [host.ratio(max(1, min(prompts, max_requests)), 0, prompt_tokens)]
    for requests, context_tokens in (
        (1, SHORT_CONTEXT_TOKENS),
        (FEW_REQUESTS, SHORT_CONTEXT_TOKENS),
        (max_requests, LONG_CONTEXT_TOKENS),
    ):
        running = min(requests, max_requests, max_batched_tokens)
        ratios.append(host.ratio(running, min(context_tokens, room_tokens), 1))
    return max(1.0, _round_up(SAFETY * max(ratios)))


def _round_up(value: float) -> float:
    """Round up to two significant digits."""
    unit = 10.0 ** (math.floor(math.log10(value)) - 1)
    return round(math.ceil(value / unit) * unit, 10)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Host:
    """The chips on this host, to be timed."""

    step: Step
    cost: StepCostModel
    ranks: int
    block_tokens: int

    def ratio(self, requests: int, first_position: int, new_tokens: int) -> float:
        """Wall seconds, the host's budget included, per emulated second: the median of a few.

        Each rank runs `requests` of `new_tokens` after `first_position` tokens of context, whose KV
        blocks they share. The first attempt warms up and does not count. A step of more tokens than
        are measured takes more in proportion.
        """
        new = min(new_tokens, max(1, MEASURED_TOKENS_MAX // self.ranks))
        running = min(requests, max(1, MEASURED_TOKENS_MAX // (self.ranks * new)))
        walls_s = [self._measure(running, first_position, new) for _ in range(ATTEMPTS)]
        wall_s = float(np.median(walls_s[1:])) * (requests * new_tokens) / (running * new)
        wall_s += HOST_STEP_S + HOST_REQUEST_STEP_S * requests * self.ranks
        batch = self._batch(requests, first_position, new_tokens)
        return wall_s * NS_PER_S / self.cost.cost(batch).duration_ns

    def _measure(self, requests: int, first_position: int, new_tokens: int) -> float:
        """Wall seconds of one step."""
        steps = [
            self._begin(rank, requests, first_position, new_tokens) for rank in range(self.ranks)
        ]
        started = time.perf_counter()
        self.step(steps, {})
        wall_s = time.perf_counter() - started
        self.step([self._end(rank, requests) for rank in range(self.ranks)], {})
        return wall_s

    def _batch(self, requests: int, first_position: int, new_tokens: int) -> StepBatch:
        """The whole step as the cost model counts it; every request samples."""
        rows = requests * self.ranks
        return StepBatch(
            ranks=self.ranks,
            rank=np.repeat(np.arange(self.ranks, dtype=np.int64), requests),
            new_tokens=np.full(rows, new_tokens, dtype=np.int64),
            context_tokens=np.full(rows, first_position, dtype=np.int64),
            logit_rows=np.full(self.ranks, requests, dtype=np.int64),
        )

    def _begin(self, rank: int, requests: int, first_position: int, new_tokens: int) -> RankStep:
        end = first_position + new_tokens
        blocks = list(range(1, 1 + -(-end // self.block_tokens)))
        tokens = [1 + 7 * position % 97 for position in range(end)]
        greedy = SamplingSpec(temperature=0.0)
        new = [
            NewRequest(
                request_id=f"calibrate-{index}",
                token_ids=tokens,
                prompt_tokens=end,
                sampling=greedy,
                block_ids=blocks,
            )
            for index in range(requests)
        ]
        scheduled = [
            Scheduled(
                request_id=request.request_id, first_position=first_position, new_tokens=new_tokens
            )
            for request in new
        ]
        return RankStep(rank=rank, new=new, scheduled=scheduled, finished=[])

    def _end(self, rank: int, requests: int) -> RankStep:
        names = [f"calibrate-{index}" for index in range(requests)]
        return RankStep(rank=rank, new=[], scheduled=[], finished=names)
