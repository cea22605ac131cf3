"""Speculative decoding: verified tokens and draft passes of a step.

A decoding request brings `draft_tokens` guesses, or as many as the batch says. Then what drafts
runs once over all of the step's tokens, and once more for each further guess: another model, or a
draft module. That is one layer of the model with its own norm and the model's LM head: as
DeepSeek-V3's multi-token prediction, with experts (arXiv 2412.19437). Assumed for models that
publish none, as EAGLE's is (arXiv 2401.15077).
"""

from dataclasses import replace

import numpy as np

from emulator.arrays import Bools, Int64s
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
    """The batch with its guesses among the new tokens, each with its logits.

    Without a count of its own, `draft_tokens` on every decoding request: one with context and one
    new token.
    """
    guesses = batch.verified_drafts
    if guesses is None:
        guesses = draft_tokens * _decodes(batch)
    of_ranks = np.bincount(batch.rank, weights=guesses, minlength=batch.ranks)
    return replace(
        batch,
        new_tokens=batch.new_tokens + guesses,
        logit_rows=batch.logit_rows + of_ranks.astype(np.int64),
        verified_drafts=None,
        made_drafts=None,
    )


def draft_passes(batch: StepBatch, draft_tokens: int) -> tuple[StepBatch, ...]:
    """The drafting batches of a step: over all verified tokens, then a token a guess.

    Prompts run through the first pass, since what drafts has its own cache.
    """
    if not draft_tokens:
        return ()
    checked = verified(batch, draft_tokens)
    whole = replace(checked, logit_rows=batch.logit_rows)
    made = batch.made_drafts
    if made is None:
        made = draft_tokens * _decodes(batch)
    ends = batch.context_tokens + checked.new_tokens
    further = (
        _one_token_each(batch, made > place, ends + place - 1)
        for place in range(1, int(made.max(initial=0)))
    )
    return (whole, *further)


def _one_token_each(batch: StepBatch, there: Bools, context_tokens: Int64s) -> StepBatch:
    rank = batch.rank[there]
    return StepBatch(
        ranks=batch.ranks,
        rank=rank,
        new_tokens=np.ones_like(rank),
        context_tokens=context_tokens[there],
        logit_rows=np.bincount(rank, minlength=batch.ranks),
    )


def _decodes(batch: StepBatch) -> Bools:
    decodes: Bools = (batch.new_tokens == 1) & (batch.context_tokens > 0)
    return decodes
