"""Work of a backward pass on each chip of a training job, part by forward part.

A product is followed by two of as many flops each: the gradients of its input and of its weights.
Attention's two products are followed by five: scores again, and the gradients of values,
probabilities, queries and keys (FlashAttention-2, arXiv 2307.08691).

HBM traffic: the forward part's once more (weights, rows that do not fit beside the engines, and
gradients where it writes keys and values); its kept activations; and gradients of weights, read and
written in FP32 because micro-batches accumulate in them.

Assumed: vector engines do twice their forward work (a gradient by each of two operands), scalar
engines and permutations the same once (each exponential again; each row back).
"""

from dataclasses import replace
from typing import Final

import numpy as np

from emulator.arrays import Float64s
from emulator.specs.model import ModelSpec
from emulator.specs.model_tensors import (
    dense_tensors,
    kv_tensors,
    latent_tensors,
    norm_tensors,
    parameters_of,
    query_tensors,
    router_tensors,
    shared_tensors,
)
from emulator.specs.saved_activations import SavedActivations
from emulator.timing.attention_work import attention_work
from emulator.timing.feed_forward_work import (
    dense_work,
    expert_work,
    lm_head_work,
    router_work,
    sampling_work,
)
from emulator.timing.gradient_shape import GradientProduct, GradientShape
from emulator.timing.head_split import HeadSplit
from emulator.timing.issue_shape import IssueShape
from emulator.timing.layer_weights import layer_weights
from emulator.timing.matrix_time import moving_rows
from emulator.timing.product_rate import ProductRate
from emulator.timing.rank_totals import RankTotals
from emulator.timing.work import FLOPS_PER_MAC, LOGIT_BYTES, EngineWork, Products, is_busy

BACKWARD_PRODUCTS: Final = 2
VECTOR_TIMES: Final = 2
ACCUMULATE_BYTES: Final = 8  # an FP32 gradient is read and written
LOSS_FLOPS: Final = 2  # per logit: probability less one for the target, times the loss's scale
LOGIT_PASSES: Final = 3  # their gradients are written, and read by two products


def attention_backward(
    model: ModelSpec,
    totals: RankTotals,
    split: HeadSplit,
    shape: IssueShape,
    gradients: GradientShape,
    *,
    window: bool,
) -> EngineWork:
    """Work after `attention_work`, with its arguments: fields are [ranks]."""
    forward = attention_work(model, totals, split, shape, window=window)
    weights, tokens = layer_weights(model), totals.tokens
    query_macs = split.query_share * (weights.query.macs - weights.kv_up_macs)
    projected = (query_macs + split.kv_share * weights.kv.macs + weights.latent.macs) * tokens
    parts = (gradients.query, gradients.kv, gradients.latent)
    issued = np.sum([part.issued_macs(tokens) for part in parts], axis=0)
    ups = BACKWARD_PRODUCTS * split.query_share * weights.kv_up_macs * tokens
    scores, issued_scores = _score_macs(model, totals, split, shape, window=window)
    flops = {ProductRate.PLAIN: FLOPS_PER_MAC * (ups + scores)}
    issued_flops = {
        ProductRate.PLAIN: FLOPS_PER_MAC * (gradients.kv_up.issued_macs(tokens) + issued_scores)
    }
    rate = gradients.query.rate
    flops[rate] = flops.get(rate, 0.0) + FLOPS_PER_MAC * BACKWARD_PRODUCTS * projected
    issued_flops[rate] = issued_flops.get(rate, 0.0) + FLOPS_PER_MAC * issued
    tensors = (
        *query_tensors(model),
        *kv_tensors(model),
        *latent_tensors(model),
        *norm_tensors(model),
    )
    return _after(
        forward,
        flops=flops,
        issued_flops=issued_flops,
        gradient_parameters=parameters_of(tensors) * is_busy(tokens),
        kept_bytes=SavedActivations.of(model).attention * tokens,
    )


def _score_macs(
    model: ModelSpec, totals: RankTotals, split: HeadSplit, shape: IssueShape, *, window: bool
) -> tuple[Float64s, Float64s]:
    """The five products of all heads: MACs, and issued MACs, with tiles as full as forwards.

    Scores, gradients of queries and of keys are as wide as a query; gradients of probabilities and
    of values as wide as a value.
    """
    latent = model.latent
    query = model.head_dim if latent is None else latent.query_width_per_head
    value = model.head_dim
    pairs = totals.window_attended if window else totals.attended
    forward_issued = totals.window_issued_head_macs if window else totals.issued_head_macs
    if latent is not None:
        forward_issued = forward_issued - shape.kv_up_macs * moving_rows(
            shape.engine, totals.tokens
        )
    heads = model.heads * split.query_share
    per_pair = 3 * query + 2 * value
    return heads * per_pair * pairs, heads * per_pair / (query + value) * forward_issued


def dense_backward(
    model: ModelSpec,
    totals: RankTotals,
    split: HeadSplit,
    shape: IssueShape,
    gradients: GradientShape,
) -> EngineWork:
    """Work after `dense_work`."""
    tokens = totals.tokens
    products = ((gradients.dense, layer_weights(model).dense.macs),)
    return _after_products(
        dense_work(model, totals, split, shape),
        products,
        tokens,
        gradient_parameters=parameters_of(dense_tensors(model)) * is_busy(tokens),
        kept_bytes=SavedActivations.of(model).dense * tokens,
    )


def router_backward(
    model: ModelSpec,
    totals: RankTotals,
    split: HeadSplit,
    shape: IssueShape,
    gradients: GradientShape,
) -> EngineWork:
    """Work after `router_work`, shared experts included."""
    weights, tokens = layer_weights(model), totals.tokens
    products = ((gradients.router, weights.router.macs), (gradients.shared, weights.shared.macs))
    tensors = (*router_tensors(model), *shared_tensors(model))
    return _after_products(
        router_work(model, totals, split, shape),
        products,
        tokens,
        gradient_parameters=parameters_of(tensors) * is_busy(tokens),
        kept_bytes=SavedActivations.of(model).router * tokens,
    )


def expert_backward(
    model: ModelSpec,
    pairs: Float64s,
    distinct: Float64s,
    shape: IssueShape,
    gradients: GradientShape,
) -> EngineWork:
    """Work after `expert_work`: each distinct expert has an even part of the pairs."""
    each = pairs / np.where(distinct > 0, distinct, 1.0)
    product = gradients.expert
    macs = layer_weights(model).expert.macs
    return _after(
        expert_work(model, pairs, distinct, shape),
        flops={product.rate: FLOPS_PER_MAC * BACKWARD_PRODUCTS * macs * pairs},
        issued_flops={product.rate: FLOPS_PER_MAC * distinct * product.issued_macs(each)},
        gradient_parameters=model.expert_parameters * distinct,
        kept_bytes=SavedActivations.of(model).expert_pair * pairs,
    )


def lm_head_backward(
    model: ModelSpec,
    totals: RankTotals,
    split: HeadSplit,
    shape: IssueShape,
    gradients: GradientShape,
) -> EngineWork:
    """Work after `lm_head_work`; an embedding's gradient is added at its token's row."""
    rows = totals.logit_rows
    head = model.vocab * model.hidden
    logits = rows * model.vocab
    work = _after_products(
        lm_head_work(model, totals, split, shape),
        ((gradients.lm_head, head),),
        rows,
        gradient_parameters=head * is_busy(rows) + model.hidden * totals.tokens,
        kept_bytes=SavedActivations.of(model).layer_input * rows,
    )
    return replace(work, hbm_bytes=work.hbm_bytes + (LOGIT_PASSES - 1) * LOGIT_BYTES * logits)


def loss_backward(model: ModelSpec, totals: RankTotals) -> EngineWork:
    """The loss's gradient by each logit; its forward part is counted as `sampling_work`."""
    logits = totals.logit_rows * model.vocab
    return EngineWork.of(
        vector_flops=LOSS_FLOPS * logits, hbm_bytes=sampling_work(model, totals).hbm_bytes
    )


def _after_products(
    forward: EngineWork,
    products: tuple[tuple[GradientProduct, int], ...],
    tokens: Float64s,
    *,
    gradient_parameters: Float64s,
    kept_bytes: Float64s,
) -> EngineWork:
    flops: dict[ProductRate, Float64s | float] = {}
    issued: dict[ProductRate, Float64s | float] = {}
    for product, macs in products:
        done = FLOPS_PER_MAC * BACKWARD_PRODUCTS * macs * tokens
        flops[product.rate] = flops.get(product.rate, 0.0) + done
        occupied = FLOPS_PER_MAC * product.issued_macs(tokens)
        issued[product.rate] = issued.get(product.rate, 0.0) + occupied
    return _after(
        forward,
        flops=flops,
        issued_flops=issued,
        gradient_parameters=gradient_parameters,
        kept_bytes=kept_bytes,
    )


def _after(
    forward: EngineWork,
    *,
    flops: Products,
    issued_flops: Products,
    gradient_parameters: Float64s,
    kept_bytes: Float64s,
) -> EngineWork:
    return EngineWork.of(
        flops=flops,
        issued_flops=issued_flops,
        vector_flops=VECTOR_TIMES * forward.vector_flops,
        scalar_ops=forward.scalar_ops,
        gpsimd_ops=forward.gpsimd_ops,
        hbm_bytes=forward.hbm_bytes + ACCUMULATE_BYTES * gradient_parameters + kept_bytes,
        lost_bytes=forward.lost_bytes,
    )
