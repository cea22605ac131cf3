"""The sums of a batch that a step's work depends on, rank by rank."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from emulator.specs.batch import StepBatch
from emulator.specs.model import ModelSpec
from emulator.timing.layer_weights import layer_weights
from emulator.timing.work import Float64s

Int64s = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class RankTotals:
    """All float64[ranks].

    A new token attends to the context, to the new tokens before it, and to itself: `attended`
    counts these (query, key) pairs, `window_attended` those inside the model's window, and
    `window_context_tokens` the cached tokens that a window still reaches. `head_macs` are the MACs
    of one head in one layer that attends to everything, beside its projections, and
    `window_head_macs` in one with a window.
    """

    tokens: Float64s
    context_tokens: Float64s
    attended: Float64s
    head_macs: Float64s
    window_context_tokens: Float64s
    window_attended: Float64s
    window_head_macs: Float64s
    logit_rows: Float64s


def rank_totals(batch: StepBatch, model: ModelSpec, *, dummy: Int64s | None = None) -> RankTotals:
    """Sums the requests of each rank.

    `dummy` are tokens int64[ranks] that a rank computes beside its requests, each attending to
    itself alone, without logits.
    """
    new, context = batch.new_tokens, batch.context_tokens
    attended = new * context + new * (new + 1) // 2
    window = model.window_tokens
    window_attended = _window_attended(new, context, window)
    per_score = 2 * model.head_dim
    extra = np.zeros(batch.ranks) if dummy is None else dummy.astype(np.float64)

    def by_rank(rows: NDArray[np.int64] | Float64s, each_dummy: float = 0.0) -> Float64s:
        # [requests] -> [ranks]
        return np.bincount(batch.rank, weights=rows, minlength=batch.ranks) + each_dummy * extra

    return RankTotals(
        tokens=by_rank(new, 1),
        context_tokens=by_rank(context),
        attended=by_rank(attended, 1),
        head_macs=by_rank(
            _head_macs(model, new, context, attended),
            float(_head_macs(model, np.ones(1), np.zeros(1), np.ones(1))[0]),
        ),
        window_context_tokens=by_rank(np.minimum(context, max(window - 1, 0))),
        window_attended=by_rank(window_attended, min(window, 1)),
        window_head_macs=by_rank(per_score * window_attended, per_score * min(window, 1)),
        logit_rows=batch.logit_rows.astype(np.float64),
    )


def _window_attended(new: Int64s, context: Int64s, window: int) -> Int64s:
    """Pairs of each request inside a window that counts a token itself: [requests].

    The first tokens still see everything before them, the rest see `window` keys each.
    """
    growing = np.clip(window - context, 0, new)
    growing_pairs: Int64s = growing * context + growing * (growing + 1) // 2
    return growing_pairs + (new - growing) * window


def _head_macs(
    model: ModelSpec, new: Int64s | Float64s, context: Int64s | Float64s, pairs: Int64s | Float64s
) -> Float64s:
    """MACs of one head in one layer for each request: [requests] float64.

    A latent is used as it is, with its up-projection folded into query and output, or unfolded
    into a head's own keys and values; each request takes the form that needs fewer. That is the
    first in decode and the second in prefill, as vLLM does it.
    """
    latent = model.latent
    if latent is None:
        return np.asarray(2 * model.head_dim * pairs, dtype=np.float64)
    up_macs = layer_weights(model).kv_up_macs / model.heads
    folded = pairs * latent.folded_macs_per_score + new * up_macs
    unfolded = pairs * latent.unfolded_macs_per_score + (new + context) * up_macs
    return np.minimum(folded, unfolded).astype(np.float64)
