"""The work after attention: dense networks, routers, shared and routed experts, and the ends.

A network that all tokens of a rank use is divided by columns over the rank's chips. Routed experts
lie whole on chips and work for the tokens of all ranks of their group.
"""

from emulator.specs.model import ModelSpec
from emulator.timing.head_split import HeadSplit
from emulator.timing.layer_weights import Weights, layer_weights
from emulator.timing.rank_totals import RankTotals
from emulator.timing.work import (
    BIAS_FLOPS,
    FLOPS_PER_MAC,
    LOGIT_BYTES,
    NORM_FLOPS,
    QUANTIZE_FLOPS,
    RESIDUAL_FLOPS,
    SOFTMAX_FLOPS,
    SWIGLU_FLOPS,
    TOP_K_FLOPS,
    Float64s,
    Work,
    is_busy,
)


def router_work(model: ModelSpec, totals: RankTotals, split: HeadSplit) -> Work:
    """One layer with experts, on each chip of each rank: norm, router, shared experts, residual.

    Norm, router and residual are done on every chip of a rank. The weighted sum of the routed
    experts' answers is made here too, where the token came from, divided over the rank's chips.
    """
    weights, tokens = layer_weights(model), totals.tokens
    vector_flops_per_token = (
        (NORM_FLOPS + RESIDUAL_FLOPS) * model.hidden
        + (SOFTMAX_FLOPS + TOP_K_FLOPS) * model.experts
        + BIAS_FLOPS * weights.router.bias_elements
        + split.column_share * FLOPS_PER_MAC * model.experts_per_token * model.hidden
    )
    router = Work.of(
        tensor_flops=FLOPS_PER_MAC * weights.router.macs * tokens,
        vector_flops=vector_flops_per_token * tokens,
        scalar_ops=model.experts * tokens,
        hbm_bytes=weights.router.stored_bytes * is_busy(totals.tokens),
    )
    width = model.shared_experts * model.expert_intermediate
    return router + _columns_work(weights.shared, width, tokens, split)


def dense_work(model: ModelSpec, totals: RankTotals, split: HeadSplit) -> Work:
    """One layer without experts, on each chip of each rank: norm, network, residual."""
    weights, tokens = layer_weights(model), totals.tokens
    norm = Work.of(vector_flops=(NORM_FLOPS + RESIDUAL_FLOPS) * model.hidden * tokens)
    return norm + _columns_work(weights.dense, model.dense_intermediate, tokens, split)


def _columns_work(weights: Weights, width: int, tokens: Float64s, split: HeadSplit) -> Work:
    share = split.column_share
    activated = share * width * tokens
    return Work.of(
        tensor_flops=FLOPS_PER_MAC * share * weights.macs * tokens,
        vector_flops=SWIGLU_FLOPS * activated,
        scalar_ops=activated,
        hbm_bytes=share * weights.stored_bytes * is_busy(tokens),
    )


def expert_work(model: ModelSpec, pairs: Float64s, distinct: Float64s) -> Work:
    """Routed experts of one layer: `pairs` (token, expert) pairs on `distinct` experts of a chip.

    Both of one shape, as the result's fields. Weights stored in low precision are multiplied in
    MXFP8 with activations that are quantised for it; MXFP4 is turned into MXFP8 before the array,
    and FP8 in blocks of 128 when it is loaded (assumed).
    """
    weights = layer_weights(model).expert
    flops = FLOPS_PER_MAC * weights.macs * pairs
    activated = model.expert_intermediate * pairs
    low = model.expert_format.is_low_precision
    quantised = (model.hidden + model.expert_intermediate) * pairs if low else 0.0
    return Work.of(
        tensor_flops=0.0 if low else flops,
        mx_flops=flops if low else 0.0,
        vector_flops=SWIGLU_FLOPS * activated
        + BIAS_FLOPS * weights.bias_elements * pairs
        + QUANTIZE_FLOPS * quantised,
        scalar_ops=activated,
        hbm_bytes=weights.stored_bytes * distinct,
    )


def ends_work(model: ModelSpec, totals: RankTotals, split: HeadSplit) -> Work:
    """What each chip of each rank does once per step: embedding, last norm, LM head, sampling.

    The vocabulary is divided over the rank's chips. Sampling is counted as one softmax over each
    row of logits.
    """
    rows, share = totals.logit_rows, split.column_share
    logits = share * rows * model.vocab
    row_bytes = model.hidden * model.weight_bytes_per_param
    head_bytes = share * model.vocab * row_bytes
    return Work.of(
        tensor_flops=FLOPS_PER_MAC * model.hidden * logits,
        vector_flops=NORM_FLOPS * model.hidden * rows + SOFTMAX_FLOPS * logits,
        scalar_ops=logits,
        hbm_bytes=share * row_bytes * totals.tokens
        + (head_bytes + row_bytes) * is_busy(rows)  # the last norm's weights are one row
        + LOGIT_BYTES * logits,
    )
