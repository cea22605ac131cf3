"""Work of attention: each chip's part of a layer before its feed-forward part."""

from emulator.arrays import Float64s
from emulator.specs.model import ModelSpec
from emulator.timing.activation_traffic import module_traffic_bytes
from emulator.timing.head_split import HeadSplit
from emulator.timing.issue_shape import IssueShape
from emulator.timing.layer_weights import layer_weights
from emulator.timing.matrix_time import moving_rows
from emulator.timing.product_rate import ProductRate
from emulator.timing.rank_totals import RankTotals
from emulator.timing.work import (
    BIAS_FLOPS,
    FLOPS_PER_MAC,
    NORM_FLOPS,
    QUANTIZE_FLOPS,
    RESIDUAL_FLOPS,
    ROPE_FLOPS,
    SOFTMAX_FLOPS,
    EngineWork,
    is_busy,
)


def attention_work(
    model: ModelSpec, totals: RankTotals, split: HeadSplit, shape: IssueShape, *, window: bool
) -> EngineWork:
    """One layer of each rank, on each of its chips: fields are [ranks].

    Heads are divided; every chip of the rank does the hidden row's norm, the residual, and a
    latent's down-projections. `window`: the layer attends only to the model's window. Scores,
    weighted sums and a latent's up-projection run in the model's dtype; a latent's 8-bit cache at
    its own rate (`product_rate.cache_rate`). Cores without a request wait for those with one more.
    """
    weights = layer_weights(model)
    tokens = totals.tokens
    attended = totals.window_attended if window else totals.attended
    context_tokens = totals.window_context_tokens if window else totals.context_tokens
    heads = model.heads * split.query_share
    scores = heads * attended
    stored_bytes = (
        split.query_share * weights.query.stored_bytes
        + split.kv_share * weights.kv.stored_bytes
        + weights.latent.stored_bytes
        + weights.norms.stored_bytes
    )
    prompts, decodes = shape.prompts, shape.decodes
    prompt_bytes = prompts.cache_share * model.kv_bytes_per_token_layer
    decode_bytes = decodes.cache_share * model.kv_bytes_per_token_layer
    decoded = totals.window_decode_context_tokens if window else totals.decode_context_tokens
    prompted = context_tokens - decoded
    idle_context = totals.window_idle_context_tokens if window else totals.idle_context_tokens
    idle_scores = heads * (totals.window_idle_attended if window else totals.idle_attended)
    idle_macs = heads * (totals.window_idle_head_macs if window else totals.idle_head_macs)
    projected = (
        split.query_share * (weights.query.macs - weights.kv_up_macs)
        + split.kv_share * weights.kv.macs
        + weights.latent.macs
    ) * tokens
    issued = (shape.query.macs + shape.kv.macs + shape.latent.macs) * moving_rows(
        shape.engine, tokens
    )
    head_macs = totals.window_head_macs if window else totals.head_macs
    issued_head_macs = totals.window_issued_head_macs if window else totals.issued_head_macs
    cached, issued_cached = totals.cached_macs, totals.issued_cached_macs
    return EngineWork.of(
        flops=_by_rate(shape, projected, heads * head_macs, heads * cached),
        issued_flops=_by_rate(
            shape,
            issued,
            heads * issued_head_macs + idle_macs,
            heads * issued_cached + (idle_macs if model.latent else 0.0),
        ),
        vector_flops=_vector_flops_per_token(model, split, shape) * tokens
        + decodes.join_flops * totals.decode_tokens
        + SOFTMAX_FLOPS * (scores + idle_scores),
        scalar_ops=scores
        + idle_scores
        + (model.heads * split.query_share if model.sinks else 0) * tokens,
        hbm_bytes=stored_bytes * is_busy(tokens)
        + prompt_bytes * prompted
        + decode_bytes * (decoded + tokens)
        + module_traffic_bytes(tokens, hidden=model.hidden, beside_bytes=shape.beside_bytes),
        lost_bytes=prompt_bytes * prompts.read_lost * prompted
        + decode_bytes * (decodes.read_lost * decoded + decodes.write_lost * tokens)
        + decode_bytes * (1 + decodes.read_lost) * idle_context,
    )


def _by_rate(
    shape: IssueShape, projected: Float64s, own: Float64s, cached: Float64s
) -> dict[ProductRate, Float64s]:
    """Flops by rate of MACs: projections, a head's own products, those on the stored cache."""
    flops = {ProductRate.PLAIN: FLOPS_PER_MAC * (own - cached)}
    for rate, macs in ((shape.query.rate, projected), (shape.cache_rate, cached)):
        flops[rate] = flops.get(rate, 0.0) + FLOPS_PER_MAC * macs
    return flops


def _vector_flops_per_token(model: ModelSpec, split: HeadSplit, shape: IssueShape) -> float:
    """Norms, rotations, biases, sinks, the residual, quantising projected values of a token."""
    latent, weights = model.latent, layer_weights(model)
    if latent is None:
        rotated = split.query_share * model.query_width + split.kv_share * model.kv_width
        normed = rotated if model.query_key_norms else 0.0
    else:
        rotated = split.query_share * model.heads * latent.rope_dim + latent.rope_dim
        normed = latent.query_rank + latent.kv_rank
    biases = (
        split.query_share * weights.query.bias_elements
        + split.kv_share * weights.kv.bias_elements
        + weights.norms.bias_elements
    )
    # A sink is one more score of each head, which no value belongs to.
    sinks = SOFTMAX_FLOPS * model.heads * split.query_share if model.sinks else 0.0
    values = split.query_share * model.heads * model.head_dim
    downs = model.latent.query_rank if model.latent else 0
    quantised = model.hidden + downs + values if shape.query.rate.quantised else 0.0
    return (
        NORM_FLOPS * (model.hidden + normed)
        + ROPE_FLOPS * rotated
        + BIAS_FLOPS * biases
        + RESIDUAL_FLOPS * model.hidden
        + QUANTIZE_FLOPS * quantised
        + sinks
    )
