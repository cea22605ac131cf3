"""A step as the cost model counts it, and the step that warms ranks up."""

from collections.abc import Sequence
from typing import Final

import numpy as np

from emulator.specs.batch import StepBatch
from emulator.specs.sampling import SamplingSpec
from emulator.specs.step import NewRequest, RankOutput, RankStep, Scheduled

WARM_UP: Final = "warm-up"
"""The request of a made-up step: no client's, for vLLM's ids end in a part of random letters."""


def warm_up_step(rank: int) -> RankStep:
    """A prompt of a few tokens that nobody asked for, on a rank that has no request."""
    tokens = list(range(1, 9))
    request = NewRequest(
        request_id=WARM_UP,
        token_ids=tokens,
        prompt_tokens=len(tokens),
        sampling=SamplingSpec(temperature=0.0),
        block_ids=[1],  # vLLM keeps block 0 to itself
    )
    scheduled = Scheduled(request_id=WARM_UP, first_position=0, new_tokens=len(tokens))
    return RankStep(rank=rank, new=[request], scheduled=[scheduled], finished=[])


def step_batch(steps: Sequence[RankStep], outputs: dict[int, RankOutput], ranks: int) -> StepBatch:
    """What was scheduled, as the cost model counts it."""
    rows = [(step.rank, item) for step in steps for item in step.scheduled]
    logit_rows = np.zeros(ranks, dtype=np.int64)
    for rank, output in outputs.items():
        scored = sum(len(rows.ranks) for rows in output.prompt_logprobs.values())
        logit_rows[rank] = len(output.request_ids) + scored
    new_tokens = np.array([item.new_tokens for _, item in rows], dtype=np.int64)
    rank_of_row = np.array([rank for rank, _ in rows], dtype=np.int64)
    tokens = np.bincount(rank_of_row, weights=new_tokens, minlength=ranks).astype(np.int64)
    return StepBatch(
        ranks=ranks,
        rank=rank_of_row,
        new_tokens=new_tokens,
        context_tokens=np.array([item.first_position for _, item in rows], dtype=np.int64),
        # Prompt rows scored in earlier chunks of the prompt were counted by no step before.
        logit_rows=np.minimum(logit_rows, tokens),
    )
