"""Work after attention: dense networks, routers, shared and routed experts, and the ends.

Networks of all tokens are divided by columns over the rank's chips. Routed experts are on chips
whole, or divided by columns over `expert_tp` of them, and work for all ranks of their group.
"""

import numpy as np

from emulator.arrays import Float64s
from emulator.specs.model import ModelSpec
from emulator.timing.activation_traffic import expert_traffic_bytes, module_traffic_bytes
from emulator.timing.head_split import HeadSplit
from emulator.timing.issue_shape import IssueShape, WeightProduct
from emulator.timing.layer_weights import Weights, layer_weights
from emulator.timing.matrix_time import moving_rows
from emulator.timing.rank_totals import RankTotals
from emulator.timing.work import (
    BIAS_FLOPS,
    FLOPS_PER_MAC,
    LOGIT_BYTES,
    NORM_FLOPS,
    PERMUTE_OPS,
    PICK_OPS,
    QUANTIZE_FLOPS,
    RESIDUAL_FLOPS,
    SAMPLE_OPS,
    SOFTMAX_FLOPS,
    SWIGLU_FLOPS,
    TOP_K_FLOPS,
    EngineWork,
    is_busy,
)


def router_work(
    model: ModelSpec, totals: RankTotals, split: HeadSplit, shape: IssueShape
) -> EngineWork:
    """One layer with experts, on each chip of each rank: norm, router, shared experts, residual.

    Every chip of a rank does norm, router and residual. The weighted sum of the routed experts'
    outputs is counted here too, at the token's rank, divided over its chips.
    """
    weights, tokens = layer_weights(model), totals.tokens
    vector_flops_per_token = (
        (NORM_FLOPS + RESIDUAL_FLOPS) * model.hidden
        + (SOFTMAX_FLOPS + TOP_K_FLOPS) * model.experts
        + BIAS_FLOPS * weights.router.bias_elements
        + split.column_share * FLOPS_PER_MAC * model.experts_per_token * model.hidden
    )
    rows = moving_rows(shape.engine, tokens)
    router = EngineWork.of(
        flops={shape.router.rate: FLOPS_PER_MAC * weights.router.macs * tokens},
        issued_flops={shape.router.rate: FLOPS_PER_MAC * shape.router.macs * rows},
        vector_flops=vector_flops_per_token * tokens,
        scalar_ops=model.experts * tokens,
        gpsimd_ops=PICK_OPS * model.experts_per_token * tokens,
        hbm_bytes=weights.router.stored_bytes * is_busy(totals.tokens)
        + module_traffic_bytes(tokens, hidden=model.hidden, beside_bytes=shape.beside_bytes),
    )
    if not model.shared_experts:
        return router
    width = model.shared_experts * model.expert_intermediate
    return router + _columns_work(model, weights.shared, width, tokens, split, shape, shape.shared)


def dense_work(
    model: ModelSpec, totals: RankTotals, split: HeadSplit, shape: IssueShape
) -> EngineWork:
    """One layer without experts, on each chip of each rank: norm, network, residual."""
    weights, tokens = layer_weights(model), totals.tokens
    norm = EngineWork.of(
        vector_flops=(NORM_FLOPS + RESIDUAL_FLOPS) * model.hidden * tokens,
        hbm_bytes=module_traffic_bytes(
            tokens, hidden=model.hidden, beside_bytes=shape.beside_bytes
        ),
    )
    width = model.dense_intermediate
    return norm + _columns_work(model, weights.dense, width, tokens, split, shape, shape.dense)


def _columns_work(
    model: ModelSpec,
    weights: Weights,
    width: int,
    tokens: Float64s,
    split: HeadSplit,
    shape: IssueShape,
    product: WeightProduct,
) -> EngineWork:
    share = split.column_share
    activated = share * width * tokens
    quantised = model.hidden * tokens + activated if product.rate.quantised else 0.0
    rows = moving_rows(shape.engine, tokens)
    return EngineWork.of(
        flops={product.rate: FLOPS_PER_MAC * share * weights.macs * tokens},
        issued_flops={product.rate: FLOPS_PER_MAC * product.macs * rows},
        vector_flops=SWIGLU_FLOPS * activated + QUANTIZE_FLOPS * quantised,
        scalar_ops=activated,
        hbm_bytes=share * weights.stored_bytes * is_busy(tokens),
    )


def expert_work(
    model: ModelSpec, pairs: Float64s, distinct: Float64s, shape: IssueShape, *, expert_tp: int = 1
) -> EngineWork:
    """Routed experts of one layer: `pairs` (token, expert) pairs on `distinct` experts of a chip.

    Both of the shape of the result's fields; a chip has one part of `expert_tp` of each expert.
    Rows are gathered into expert order first. Pairs count as spread evenly over the distinct
    experts, so the least issue size binds only on average.
    """
    weights, product = layer_weights(model).expert, shape.expert
    share = 1 / expert_tp
    activated = share * model.expert_intermediate * pairs
    quantised = model.hidden * pairs + activated if product.rate.quantised else 0.0
    rows = np.maximum(pairs, shape.engine.moving_rows_min.value * distinct)
    return EngineWork.of(
        flops={product.rate: FLOPS_PER_MAC * share * weights.macs * pairs},
        issued_flops={product.rate: FLOPS_PER_MAC * product.macs * rows},
        vector_flops=SWIGLU_FLOPS * activated
        + BIAS_FLOPS * share * weights.bias_elements * pairs
        + QUANTIZE_FLOPS * quantised,
        scalar_ops=activated,
        gpsimd_ops=PERMUTE_OPS * model.hidden * pairs,
        hbm_bytes=share * weights.stored_bytes * distinct
        + expert_traffic_bytes(
            pairs,
            hidden=model.hidden,
            width=share * model.expert_intermediate,
            beside_bytes=shape.beside_bytes,
        ),
    )


def lm_head_work(
    model: ModelSpec, totals: RankTotals, split: HeadSplit, shape: IssueShape
) -> EngineWork:
    """Once per step on each chip of each rank: embedding, last norm, LM head.

    The vocabulary is divided over the rank's chips.
    """
    rows, share = totals.logit_rows, split.column_share
    logits = share * rows * model.vocab
    row_bytes = model.hidden * model.weight_bytes_per_param
    head_bytes = share * model.vocab * row_bytes
    moving = moving_rows(shape.engine, rows)
    return EngineWork.of(
        flops={shape.lm_head.rate: FLOPS_PER_MAC * model.hidden * logits},
        issued_flops={shape.lm_head.rate: FLOPS_PER_MAC * shape.lm_head.macs * moving},
        vector_flops=NORM_FLOPS * model.hidden * rows,
        hbm_bytes=share * row_bytes * totals.tokens
        + (head_bytes + row_bytes) * is_busy(rows)  # the last norm's weights are one row
        + LOGIT_BYTES * logits,
    )


def joining_work(
    model: ModelSpec, totals: RankTotals, split: HeadSplit, shape: IssueShape
) -> EngineWork:
    """A draft module's projection of two normed rows, of the model's last layer and of the next
    token's embedding, to one; in the model's dtype, divided by columns over the rank's chips.
    """
    share, tokens = split.column_share, totals.tokens
    macs = share * 2 * model.hidden * model.hidden
    rows = moving_rows(shape.engine, tokens)
    return EngineWork.of(
        flops={shape.joining.rate: FLOPS_PER_MAC * macs * tokens},
        issued_flops={shape.joining.rate: FLOPS_PER_MAC * shape.joining.macs * rows},
        vector_flops=2 * NORM_FLOPS * model.hidden * tokens,
        hbm_bytes=macs * model.weight_bytes_per_param * is_busy(tokens),
    )


def sampling_work(model: ModelSpec, totals: RankTotals) -> EngineWork:
    """Drawing a token from each row of logits, which every chip of a rank has.

    Counted as one softmax over the row, and one pass that finds the drawn token's index.
    """
    logits = totals.logit_rows * model.vocab
    return EngineWork.of(
        vector_flops=SOFTMAX_FLOPS * logits,
        scalar_ops=logits,
        gpsimd_ops=SAMPLE_OPS * logits,
        hbm_bytes=LOGIT_BYTES * logits,
    )
