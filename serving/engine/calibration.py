"""Measures how much slower this host is than the emulated machine, for four loads.

Times steps on the live chips before the engine is ready, over the cost model's durations. One ratio
sets the clock's first dilation, which then follows the load (`emulator.sim.load_follower`).
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from emulator.sim.load_follower import HEADROOM, round_dilation
from emulator.specs.batch import StepBatch
from emulator.specs.sampling import SamplingSpec
from emulator.specs.step import NewRequest, RankOutput, RankStep, Scheduled
from emulator.ultraserver.step_cost import StepCostModel
from emulator.units import NS_PER_S
from serving.wire.machine_state import HostRatio

HOST_STEP_S = 0.004
HOST_REQUEST_STEP_S = 0.000_2
"""Assumed wall time per step, and per request in it, of vLLM's scheduler, front end and a client on
the same cores; above vLLM's share in the benchmark of a decode step."""

PROMPT_TOKENS_MAX = 2_048
BATCHED_TOKENS_MAX = 8_192
"""Bounds of the measured prefills: one prompt, and all prompts of a rank's step."""

MEASURED_TOKENS_MAX = 8_192
"""Most tokens of a measured step, all ranks together; larger steps are extrapolated in proportion.
144 ranks' largest would take minutes."""

SHORT_CONTEXT_TOKENS = 64
LONG_CONTEXT_TOKENS = 1_024
FEW_REQUESTS = 16

ATTEMPTS = 4

SLOW_RATIO = 100.0
"""Wall seconds per emulated second above which the engine warns."""

Step = Callable[[Sequence[RankStep], Mapping[int, NDArray[np.int32]]], Mapping[int, RankOutput]]


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolLimits:
    """Limits of a step by one rank's KV pool and scheduler."""

    block_tokens: int
    kv_blocks: int
    max_model_len: int
    max_batched_tokens: int
    max_requests: int

    @property
    def room_tokens(self) -> int:
        """The longest context of one request that leaves room for a token."""
        return min(self.max_model_len - 1, (self.kv_blocks - 1) * self.block_tokens - 1)


def host_ratios(
    step: Step,
    cost: StepCostModel,
    *,
    ranks: int,
    limits: PoolLimits,
    expected_requests: int | None = None,
) -> tuple[HostRatio, ...]:
    """Measure a full prefill, one decode a rank, a few, and as many as a rank may run.

    A decode step of `expected_requests`, of all ranks, is measured too and chosen, if given; else
    one decode a rank is. `step` overwrites the chips' KV blocks.
    """
    host = _Host(step=step, cost=cost, ranks=ranks, block_tokens=limits.block_tokens)
    most = min(limits.max_requests, limits.max_batched_tokens)
    short = min(SHORT_CONTEXT_TOKENS, limits.room_tokens)
    few = min(FEW_REQUESTS, most)
    prompt_tokens = min(PROMPT_TOKENS_MAX, limits.room_tokens, limits.max_batched_tokens)
    prompts = min(BATCHED_TOKENS_MAX, limits.max_batched_tokens) // prompt_tokens
    prompts = max(1, min(prompts, limits.max_requests))
    long = min(LONG_CONTEXT_TOKENS, limits.room_tokens)
    found = [
        HostRatio(
            load=f"prefill, {prompts} x {prompt_tokens} tokens a rank",
            ratio=host.ratio(prompts, 0, prompt_tokens),
        ),
        HostRatio(
            load="decode, 1 request a rank",
            ratio=host.ratio(1, short, 1),
            chosen=expected_requests is None,
        ),
        HostRatio(load=f"decode, {few} requests a rank", ratio=host.ratio(few, short, 1)),
        HostRatio(
            load=f"decode, {most} requests a rank at {long} tokens of context",
            ratio=host.ratio(most, long, 1),
        ),
    ]
    if expected_requests is not None:
        busy_ranks = min(ranks, expected_requests)
        running = min(most, -(-expected_requests // busy_ranks))
        ratio = host.ratio(running, short, 1, busy_ranks=busy_ranks)
        load = f"decode, {expected_requests} requests expected"
        found.append(HostRatio(load=load, ratio=ratio, chosen=True))
    return tuple(found)


def first_dilation(ratios: Sequence[HostRatio]) -> float:
    """The clock's first dilation, at least 1: the chosen ratio plus head-room."""
    (chosen,) = (each for each in ratios if each.chosen)
    return max(1.0, round_dilation((1.0 + HEADROOM) * chosen.ratio))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Host:
    """Times steps of the chips on this host."""

    step: Step
    cost: StepCostModel
    ranks: int
    block_tokens: int

    def ratio(
        self, requests: int, first_position: int, new_tokens: int, *, busy_ranks: int | None = None
    ) -> float:
        """Wall seconds, host budget included, per emulated second: the median after a warm-up.

        Each of the first `busy_ranks` (default: all) runs `requests` of `new_tokens` after
        `first_position` tokens of context, in shared KV blocks.
        """
        busy = self.ranks if busy_ranks is None else busy_ranks
        new = min(new_tokens, max(1, MEASURED_TOKENS_MAX // busy))
        running = min(requests, max(1, MEASURED_TOKENS_MAX // (busy * new)))
        walls_s = [self._measure(busy, running, first_position, new) for _ in range(ATTEMPTS)]
        wall_s = float(np.median(walls_s[1:])) * (requests * new_tokens) / (running * new)
        wall_s += HOST_STEP_S + HOST_REQUEST_STEP_S * requests * busy
        batch = self._batch(busy, requests, first_position, new_tokens)
        return wall_s * NS_PER_S / self.cost.cost(batch).duration_ns

    def _measure(
        self, busy_ranks: int, requests: int, first_position: int, new_tokens: int
    ) -> float:
        """Wall seconds of one step."""
        steps = [
            self._begin(rank, requests, first_position, new_tokens) for rank in range(busy_ranks)
        ]
        started = time.perf_counter()
        self.step(steps, {})
        wall_s = time.perf_counter() - started
        self.step([self._end(rank, requests) for rank in range(busy_ranks)], {})
        return wall_s

    def _batch(
        self, busy_ranks: int, requests: int, first_position: int, new_tokens: int
    ) -> StepBatch:
        """The whole step; every request samples."""
        rows = requests * busy_ranks
        logit_rows = np.zeros(self.ranks, dtype=np.int64)
        logit_rows[:busy_ranks] = requests
        return StepBatch(
            ranks=self.ranks,
            rank=np.repeat(np.arange(busy_ranks, dtype=np.int64), requests),
            new_tokens=np.full(rows, new_tokens, dtype=np.int64),
            context_tokens=np.full(rows, first_position, dtype=np.int64),
            logit_rows=logit_rows,
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
