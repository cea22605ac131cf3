"""Splits a step's requests into two half batches, which alternate computing and exchanging."""

import numpy as np

from emulator.specs.batch import StepBatch
from emulator.specs.expert_loads import ExpertLoads

REQUESTS_MIN = 2  # of every rank that has any: with one, a half would be idle


def half_batches(batch: StepBatch) -> tuple[StepBatch, StepBatch] | None:
    """Every second request of each rank, the longest first; None where a rank has only one.

    Logit rows are halved, the odd one in the first half.
    """
    requests = np.bincount(batch.rank, minlength=batch.ranks)
    if ((requests > 0) & (requests < REQUESTS_MIN)).any() or not len(batch.rank):
        return None
    order = np.lexsort((-batch.new_tokens, batch.rank))
    first = np.cumsum(requests) - requests
    place = np.arange(len(order)) - first[batch.rank[order]]  # within its rank
    halves = []
    for half in (0, 1):
        mine = order[place % 2 == half]
        tokens = np.bincount(
            batch.rank[mine], weights=batch.new_tokens[mine], minlength=batch.ranks
        )
        logits = (batch.logit_rows + 1 - half) // 2
        halves.append(
            StepBatch(
                ranks=batch.ranks,
                rank=batch.rank[mine],
                new_tokens=batch.new_tokens[mine],
                context_tokens=batch.context_tokens[mine],
                logit_rows=np.minimum(logits, tokens.astype(np.int64)),
            )
        )
    return halves[0], halves[1]


def half_loads(loads: ExpertLoads) -> ExpertLoads:
    """Half of the counted loads, with at most as many distinct experts as pairs (assumed: counts do
    not tell which tokens hit which).
    """
    pairs = loads.pairs / 2
    return ExpertLoads(pairs=pairs, distinct=np.minimum(loads.distinct, pairs), sent=loads.sent / 2)
