"""The work of one step: flops, elementwise operations and HBM bytes, counted from the batch.

Exact formulas over the model's dimensions; the batch enters by four sums per rank. A
multiply-accumulate is two flops. Nothing here is a time: rates belong to the roofline.

What is taken to move through HBM: weights once per step, by a rank or chip that uses them; the
cached keys and values of a request once per step and layer; new keys and values, written; embedding
rows; logits, written. Activations stay in SBUF (assumed: a chunk of 8,192 tokens x 2,048 x 2 bytes
is 34 MB of the chip's 268).
"""

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from emulator.specs.batch import StepBatch
from emulator.specs.model import ModelSpec
from emulator.timing.routing import (
    expected_assignments_per_chip,
    expected_distinct_experts_per_chip,
)

Float64s = NDArray[np.float64]

FLOPS_PER_MAC: Final = 2
NORM_FLOPS: Final = 4  # per element: square, sum, times 1/rms, times weight
ROPE_FLOPS: Final = 3  # per element: two products and a sum
SOFTMAX_FLOPS: Final = 4  # per score beside its exp: running maximum, subtract, sum, rescale
TOP_K_FLOPS: Final = 1  # per router score: one pass finds the largest eight (VectorE's max)
SWIGLU_FLOPS: Final = 2  # per element beside its sigmoid: gate x sigmoid(gate), x up
RESIDUALS_PER_LAYER: Final = 2
LOGIT_BYTES: Final = 4  # FP32


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """Work of each rank or chip, by the resource that does it; all [ranks] or broadcast to it."""

    tensor_flops: Float64s
    vector_flops: Float64s
    scalar_ops: Float64s
    hbm_bytes: Float64s

    def __add__(self, other: "Work") -> "Work":
        return Work(
            tensor_flops=self.tensor_flops + other.tensor_flops,
            vector_flops=self.vector_flops + other.vector_flops,
            scalar_ops=self.scalar_ops + other.scalar_ops,
            hbm_bytes=self.hbm_bytes + other.hbm_bytes,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RankTotals:
    """The sums of a batch that its work depends on, float64[ranks], whole numbers.

    `attended` counts (query, key) pairs under the causal mask: a new token attends to the context,
    to the new tokens before it, and to itself.
    """

    tokens: Float64s
    attended: Float64s
    context_tokens: Float64s
    logit_rows: Float64s


def rank_totals(batch: StepBatch) -> RankTotals:
    """Sums the requests of each rank."""
    new, context = batch.new_tokens, batch.context_tokens
    attended = new * context + new * (new + 1) // 2

    def by_rank(rows: NDArray[np.int64]) -> Float64s:  # [requests] -> [ranks]
        return np.bincount(batch.rank, weights=rows, minlength=batch.ranks).astype(np.float64)

    return RankTotals(
        tokens=by_rank(new),
        attended=by_rank(attended),
        context_tokens=by_rank(context),
        logit_rows=batch.logit_rows.astype(np.float64),
    )


def attention_work(model: ModelSpec, totals: RankTotals) -> Work:
    """What each rank does of one layer beside its experts: attention, norms, router, residuals.

    Each rank works for its own tokens with its own replica. The weighted sum of the experts'
    answers is made here too, where the token came from.
    """
    tokens, scores = totals.tokens, totals.attended * model.heads
    weights = model.projection_parameters_per_layer + model.router_parameters_per_layer
    rotated = model.query_width + model.kv_width
    vector_flops_per_token = (
        NORM_FLOPS * (2 * model.hidden + rotated)
        + ROPE_FLOPS * rotated
        + RESIDUALS_PER_LAYER * model.hidden
        + (SOFTMAX_FLOPS + TOP_K_FLOPS) * model.experts
        + FLOPS_PER_MAC * model.experts_per_token * model.hidden
    )
    weight_bytes = model.replicated_parameters_per_layer * model.weight_bytes_per_param
    return Work(
        tensor_flops=FLOPS_PER_MAC * (weights * tokens + 2 * model.head_dim * scores),
        vector_flops=vector_flops_per_token * tokens + SOFTMAX_FLOPS * scores,
        scalar_ops=model.experts * tokens + scores,
        hbm_bytes=weight_bytes * (tokens > 0)
        + model.kv_bytes_per_token_layer * (totals.context_tokens + tokens),
    )


def expert_work(model: ModelSpec, tokens_of_all_ranks: float, ep: int) -> Work:
    """What each of `ep` chips does of one layer for the tokens of all ranks; fields are [1].

    Expected values under the stated routing, the same on every chip.
    """
    assignments = expected_assignments_per_chip(model, tokens_of_all_ranks, ep)
    distinct = expected_distinct_experts_per_chip(model, tokens_of_all_ranks, ep)
    activated = assignments * model.expert_intermediate
    return Work(
        tensor_flops=np.array([FLOPS_PER_MAC * model.expert_parameters * assignments]),
        vector_flops=np.array([SWIGLU_FLOPS * activated]),
        scalar_ops=np.array([activated]),
        hbm_bytes=np.array([distinct * model.expert_parameters * model.weight_bytes_per_param]),
    )


def ends_work(model: ModelSpec, totals: RankTotals) -> Work:
    """What each rank does once per step, outside the layers: embedding, last norm, LM head.

    Sampling is counted as one softmax over each row of logits.
    """
    rows = totals.logit_rows
    logits = rows * model.vocab
    row_bytes = model.hidden * model.weight_bytes_per_param
    head_bytes = model.vocab * row_bytes
    return Work(
        tensor_flops=FLOPS_PER_MAC * model.hidden * logits,
        vector_flops=NORM_FLOPS * model.hidden * rows + SOFTMAX_FLOPS * logits,
        scalar_ops=logits,
        hbm_bytes=row_bytes * totals.tokens
        + (head_bytes + row_bytes) * (rows > 0)  # the last norm's weights are one row
        + LOGIT_BYTES * logits,
    )
