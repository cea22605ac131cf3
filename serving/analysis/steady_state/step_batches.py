"""Batches of a steady state: the work of every rank of a replica in a step."""

from collections.abc import Iterator, Sequence

import numpy as np

from emulator.arrays import Int64s
from emulator.specs.batch import StepBatch
from serving.analysis.steady_state.request_shape import RequestShape


def steady_batch(
    ranks: int, *, decodes: int, shape: RequestShape, prefill_tokens: int = 0
) -> StepBatch:
    """Each rank decodes `decodes` requests in mid-output beside `prefill_tokens` of prompts.

    Whole prompts have what is cached as context; the rest is a chunk from the middle of one. Each
    has a row of logits, as it may be the last of its prompt.
    """
    new, context = _prompts(prefill_tokens, shape.computed_tokens, shape.cached_tokens)
    return same_on_all(
        ranks,
        np.concatenate([np.ones(decodes, dtype=np.int64), new]),
        np.concatenate([np.full(decodes, shape.decode_context_tokens), context]),
    )


def spread_batch(
    ranks: int,
    *,
    decodes: int,
    context_tokens: int,
    prompt_tokens: int,
    cached_tokens: int = 0,
    prefill_tokens: int = 0,
) -> StepBatch:
    """`decodes` requests in turns over all ranks, each of which has `prefill_tokens` of prompts, of
    which `cached_tokens` each are cached.
    """
    new, context = _prompts(prefill_tokens, prompt_tokens - cached_tokens, cached_tokens)
    rank = np.concatenate(
        [np.arange(decodes, dtype=np.int64) % ranks, np.repeat(np.arange(ranks), len(new))]
    )
    return StepBatch(
        ranks=ranks,
        rank=rank,
        new_tokens=np.concatenate([np.ones(decodes, dtype=np.int64), np.tile(new, ranks)]),
        context_tokens=np.concatenate([np.full(decodes, context_tokens), np.tile(context, ranks)]),
        logit_rows=np.bincount(rank, minlength=ranks),
    )


def _prompts(
    prefill_tokens: int, computed_tokens: int, cached_tokens: int
) -> tuple[Int64s, Int64s]:
    """New tokens and contexts of a rank's prompts: whole ones, and a chunk from a middle.

    Of each prompt `computed_tokens` come after `cached_tokens`.
    """
    prompts, rest = divmod(prefill_tokens, computed_tokens)
    times = [prompts, int(rest > 0)]
    middle = cached_tokens + (computed_tokens - rest) // 2
    return np.repeat([computed_tokens, rest], times), np.repeat([cached_tokens, middle], times)


def prompt_chunks(ranks: int, shape: RequestShape) -> list[StepBatch]:
    """The steps of one prompt on the first rank, the others idle, within the token limit."""
    return [lone_request(ranks, new, context) for new, context in _chunks(shape)]


def prefill_steps(ranks: int, shape: RequestShape) -> tuple[list[StepBatch], int]:
    """Steps of prompts on all ranks, and a rank's prompts in them: as many as fit, or one."""
    new, cached = shape.computed_tokens, shape.cached_tokens
    prompts = shape.batched_tokens_max // new
    if prompts:
        return [same_on_all(ranks, [new] * prompts, [cached] * prompts)], prompts
    return [same_on_all(ranks, [new], [context]) for new, context in _chunks(shape)], 1


def _chunks(shape: RequestShape) -> Iterator[tuple[int, int]]:
    """New tokens of each step of one prompt, and the context before them."""
    limit = shape.batched_tokens_max
    for first in range(shape.cached_tokens, shape.prompt_tokens, limit):
        yield min(limit, shape.prompt_tokens - first), first


def lone_request(ranks: int, new_tokens: int, context_tokens: int) -> StepBatch:
    """One request on the first rank, with logits at its last token; the others are idle."""
    logit_rows = np.zeros(ranks, dtype=np.int64)
    logit_rows[0] = 1
    return StepBatch(
        ranks=ranks,
        rank=np.zeros(1, dtype=np.int64),
        new_tokens=np.array([new_tokens], dtype=np.int64),
        context_tokens=np.array([context_tokens], dtype=np.int64),
        logit_rows=logit_rows,
    )


def same_on_all(
    ranks: int, new: Sequence[int] | Int64s, context: Sequence[int] | Int64s
) -> StepBatch:
    """Ranks with the same requests, each with logits at its last token."""
    return StepBatch(
        ranks=ranks,
        rank=np.repeat(np.arange(ranks, dtype=np.int64), len(new)),
        new_tokens=np.tile(np.asarray(new, dtype=np.int64), ranks),
        context_tokens=np.tile(np.asarray(context, dtype=np.int64), ranks),
        logit_rows=np.full(ranks, len(new), dtype=np.int64),
    )
