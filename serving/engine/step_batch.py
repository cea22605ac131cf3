"""A step as the cost model counts it, its observer, and the warm-up step."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from emulator.specs.batch import StepBatch
from emulator.specs.sampling import SamplingSpec
from emulator.specs.step import NewRequest, RankOutput, RankStep, Scheduled
from emulator.ultraserver.step_cost import StepCost
from serving.engine.scheduler_state import RankQueues

Int64s = NDArray[np.int64]

WARM_UP: Final = "warm-up"
"""The request of a warm-up step; differs from clients', whose ids end in random letters."""
WARM_UP_TOKENS: Final = 8
"""Of its prompt."""


class StepWatcher(Protocol):
    """Observer of each step, its batch, and the ranks' queues as of its decision."""

    def __call__(
        self, cost: StepCost, batch: StepBatch, *, begin_ns: int, queues: Sequence[RankQueues]
    ) -> None:
        """Observe one step; changes nothing."""


def warm_up_step(rank: int) -> RankStep:
    """A short prompt on a rank without requests."""
    tokens = list(range(1, WARM_UP_TOKENS + 1))
    request = NewRequest(
        request_id=WARM_UP,
        token_ids=tokens,
        prompt_tokens=len(tokens),
        sampling=SamplingSpec(temperature=0.0),
        block_ids=[1],  # vLLM keeps block 0 to itself
    )
    scheduled = Scheduled(request_id=WARM_UP, first_position=0, new_tokens=len(tokens))
    return RankStep(rank=rank, new=[request], scheduled=[scheduled], finished=[])


def warm_up_batch(ranks: Sequence[int], count: int) -> StepBatch:
    """A warm-up step on some of an engine's `count` ranks, as the cost model counts it."""
    return StepBatch(
        ranks=count,
        rank=np.array(ranks, dtype=np.int64),
        new_tokens=np.full(len(ranks), WARM_UP_TOKENS),
        context_tokens=np.zeros(len(ranks), dtype=np.int64),
        logit_rows=np.bincount(ranks, minlength=count),
    )


def seen_tokens(steps: Sequence[RankStep], outputs: dict[int, RankOutput]) -> int:
    """Tokens of a step that are for clients."""
    unseen = {name for step in steps for name in step.unseen}
    made = sum(len(output.request_ids) for output in outputs.values())
    if not unseen:
        return made
    return made - sum(name in unseen for output in outputs.values() for name in output.request_ids)


def step_batch(steps: Sequence[RankStep], outputs: dict[int, RankOutput], ranks: int) -> StepBatch:
    """The scheduled work as the cost model counts it, with drafts that are verified and made."""
    rows = [(step.rank, item) for step in steps for item in step.scheduled]
    logit_rows = np.zeros(ranks, dtype=np.int64)
    for rank, output in outputs.items():
        scored = sum(len(rows.ranks) for rows in output.prompt_logprobs.values())
        logit_rows[rank] = len(set(output.request_ids)) + scored
    drafts = np.array([len(item.draft_tokens) for _, item in rows], dtype=np.int64)
    new_tokens = np.array([item.new_tokens for _, item in rows], dtype=np.int64) - drafts
    made = [len(outputs[rank].drafts.get(item.request_id, ())) for rank, item in rows]
    rank_of_row = np.array([rank for rank, _ in rows], dtype=np.int64)
    tokens = np.bincount(rank_of_row, weights=new_tokens, minlength=ranks).astype(np.int64)
    return StepBatch(
        ranks=ranks,
        rank=rank_of_row,
        new_tokens=new_tokens,
        context_tokens=np.array([item.first_position for _, item in rows], dtype=np.int64),
        # Prompt rows scored in earlier chunks of the prompt were counted by no step before.
        logit_rows=np.minimum(logit_rows, tokens),
        verified_drafts=drafts,
        made_drafts=np.array(made, dtype=np.int64),
    )


def without_ranks(batch: StepBatch, ranks: Sequence[int]) -> StepBatch:
    """The batch without the rows of some ranks."""
    if not ranks:
        return batch
    there = ~np.isin(batch.rank, ranks)
    logit_rows = batch.logit_rows.copy()
    logit_rows[list(ranks)] = 0
    return replace(
        batch,
        rank=batch.rank[there],
        new_tokens=batch.new_tokens[there],
        context_tokens=batch.context_tokens[there],
        logit_rows=logit_rows,
        verified_drafts=_of_rows(batch.verified_drafts, there),
        made_drafts=_of_rows(batch.made_drafts, there),
    )


def _of_rows(drafts: Int64s | None, there: NDArray[np.bool_]) -> Int64s | None:
    return None if drafts is None else drafts[there]


def prefill_and_decode_tokens(batch: StepBatch) -> tuple[Int64s, Int64s]:
    """New tokens of prompts, and of requests that decode: both [ranks]."""
    decodes = (batch.new_tokens == 1) & (batch.context_tokens > 0)
    decode_tokens = np.bincount(batch.rank[decodes], minlength=batch.ranks).astype(np.int64)
    return batch.tokens_by_rank() - decode_tokens, decode_tokens
