"""Finds the dilation at which this host keeps up with the emulated machine.

Runs representative steps on the live chips before the engine is ready, and compares their wall time
with what the cost model says they take. The result is fixed for the run.
"""

import math
import time
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from emulator.model import StepCostModel
from emulator.specs.sampling import SamplingSpec
from emulator.specs.step import NewRequest, RankOutput, RankStep, Scheduled
from serving.plugin.translate import step_batch

SAFETY = 1.25
"""Assumed head-room over the measured ratio: other programs share the host's cores."""

HOST_STEP_S = 0.004
HOST_REQUEST_STEP_S = 0.000_5
"""Assumed wall time per step, and per request in it, of vLLM's scheduler, its front end and a
client on the same cores; about twice what the benchmark of a decode step measures."""

DECODES_PER_RANK = 16
PROMPT_TOKENS = 32

Step = Callable[[Sequence[RankStep], Mapping[int, NDArray[np.int32]]], Mapping[int, RankOutput]]


def calibrate(
    step: Step,
    cost: StepCostModel,
    *,
    ranks: int,
    block_tokens: int,
    kv_blocks: int,
    max_batched_tokens: int,
    max_requests: int,
) -> float:
    """Return the dilation, at least 1, rounded up to two significant digits.

    `step` computes on chips whose KV blocks hold nothing of value; they are free afterwards.
    """
    requests = min(DECODES_PER_RANK, max_requests, max_batched_tokens // PROMPT_TOKENS)
    room_tokens = (kv_blocks - 1) * block_tokens
    ratios = [_prefill_ratio(step, cost, ranks, block_tokens, min(max_batched_tokens, room_tokens))]
    blocks_each = -(-2 * PROMPT_TOKENS // block_tokens)
    requests = max(1, min(requests, (kv_blocks - 1) // blocks_each))
    ratios += [
        _decode_ratio(step, cost, ranks, block_tokens, count) for count in sorted({1, requests})
    ]
    return max(1.0, _round_up(SAFETY * max(ratios)))


def _round_up(value: float) -> float:
    """Round up to two significant digits."""
    unit = 10.0 ** (math.floor(math.log10(value)) - 1)
    return round(math.ceil(value / unit) * unit, 10)


def _timed(step: Step, cost: StepCostModel, ranks: int, steps: list[RankStep]) -> float:
    """Wall seconds of `steps`, budget of the host included, per emulated second."""
    started = time.perf_counter()
    outputs = dict(step(steps, {}))
    wall_s = time.perf_counter() - started
    requests = sum(len(rank.scheduled) for rank in steps)
    emulated_s = cost.cost(step_batch(steps, outputs, ranks)).duration_ns / 1e9
    return (wall_s + HOST_STEP_S + HOST_REQUEST_STEP_S * requests) / emulated_s


def _prefill_ratio(
    step: Step, cost: StepCostModel, ranks: int, block_tokens: int, tokens: int
) -> float:
    """The median of a few prefills of `tokens` on every rank at once; the first one warms up."""
    ratios = []
    for attempt in range(4):
        name = f"calibrate-prefill-{attempt}"
        blocks = list(range(1, 1 + -(-tokens // block_tokens)))
        steps = [_begin(rank, {f"{name}-{rank}": blocks}, tokens) for rank in range(ranks)]
        ratios.append(_timed(step, cost, ranks, steps))
        step([_end(rank, [f"{name}-{rank}"]) for rank in range(ranks)], {})
    return float(np.median(ratios[1:]))


def _decode_ratio(
    step: Step, cost: StepCostModel, ranks: int, block_tokens: int, requests: int
) -> float:
    """The median of a few decode steps with `requests` running on every rank."""
    each = -(-2 * PROMPT_TOKENS // block_tokens)
    tables = {
        rank: {
            f"calibrate-{rank}-{index}": list(range(1 + index * each, 1 + (index + 1) * each))
            for index in range(requests)
        }
        for rank in range(ranks)
    }
    step([_begin(rank, tables[rank], PROMPT_TOKENS) for rank in range(ranks)], {})
    ratios = []
    for position in range(PROMPT_TOKENS, PROMPT_TOKENS + 5):
        steps = [
            RankStep(
                rank=rank,
                new=[],
                scheduled=[
                    Scheduled(request_id=name, first_position=position, new_tokens=1)
                    for name in tables[rank]
                ],
                finished=[],
            )
            for rank in range(ranks)
        ]
        ratios.append(_timed(step, cost, ranks, steps))
    step([_end(rank, list(tables[rank])) for rank in range(ranks)], {})
    return float(np.median(ratios))


def _begin(rank: int, tables: dict[str, list[int]], tokens: int) -> RankStep:
    """Prefill `tokens` of made-up prompt for each request of `tables`."""
    new = [
        NewRequest(
            request_id=name,
            token_ids=[1 + (7 * position + index) % 97 for position in range(tokens)],
            prompt_tokens=tokens,
            sampling=SamplingSpec(temperature=0.0),
            block_ids=blocks,
        )
        for index, (name, blocks) in enumerate(tables.items())
    ]
    scheduled = [Scheduled(request_id=name, first_position=0, new_tokens=tokens) for name in tables]
    return RankStep(rank=rank, new=new, scheduled=scheduled, finished=[])


def _end(rank: int, names: list[str]) -> RankStep:
    return RankStep(rank=rank, new=[], scheduled=[], finished=names)
