"""Speculative decoding: verified tokens and draft passes of a step.

A decoding request brings `draft_tokens` guesses. Then the draft module runs once over all of the
step's tokens, and once more for each further guess. It is one layer of the model with its own norm
and the model's LM head: as DeepSeek-V3's multi-token prediction, with experts (arXiv 2412.19437).
Assumed for models that publish none, as EAGLE's is (arXiv 2401.15077).
"""

from dataclasses import replace

import numpy as np

from emulator.arrays import Bools
from emulator.specs.batch import StepBatch
from emulator.specs.model import ModelSpec


def draft_module(model: ModelSpec) -> ModelSpec:
    """The model of one draft pass: the last layer alone, attending to everything."""
    return replace(
        model,
        name=f"{model.name} (draft)",
        layers=1,
        first_dense_layers=0,
        dense_intermediate=0 if model.experts else model.dense_intermediate,
        window_tokens=0,
        full_attention_every=1,
    )


def verified(batch: StepBatch, draft_tokens: int) -> StepBatch:
    """The batch with `draft_tokens` guesses on every decoding request, each with its logits.

    A request with context and one new token decodes.
    """
    decodes = _decodes(batch)
    return replace(
        batch,
        new_tokens=batch.new_tokens + draft_tokens * decodes,
        logit_rows=batch.logit_rows
        + draft_tokens * np.bincount(batch.rank[decodes], minlength=batch.ranks),
    )


def draft_passes(batch: StepBatch, draft_tokens: int) -> tuple[StepBatch, ...]:
    """The draft module's batches of a step: over all verified tokens, then a token a guess.

    Prompts run through its first pass, since it has its own cache.
    """
    if not draft_tokens:
        return ()
    whole = replace(verified(batch, draft_tokens), logit_rows=batch.logit_rows)
    decodes = _decodes(batch)
    rank = batch.rank[decodes]
    if not len(rank):
        return (whole,)
    further = (
        StepBatch(
            ranks=batch.ranks,
            rank=rank,
            new_tokens=np.ones_like(rank),
            context_tokens=batch.context_tokens[decodes] + draft_tokens + 1 + place,
            logit_rows=np.bincount(rank, minlength=batch.ranks),
        )
        for place in range(draft_tokens - 1)
    )
    return (whole, *further)


def _decodes(batch: StepBatch) -> Bools:
    decodes: Bools = (batch.new_tokens == 1) & (batch.context_tokens > 0)
    return decodes
