"""The work of attention: what each chip of a rank does of a layer before its feed-forward part."""

from emulator.specs.model import ModelSpec
from emulator.timing.head_split import HeadSplit
from emulator.timing.layer_weights import layer_weights
from emulator.timing.rank_totals import RankTotals
from emulator.timing.work import (
    BIAS_FLOPS,
    FLOPS_PER_MAC,
    NORM_FLOPS,
    RESIDUAL_FLOPS,
    ROPE_FLOPS,
    SOFTMAX_FLOPS,
    Work,
    is_busy,
)


def attention_work(model: ModelSpec, totals: RankTotals, split: HeadSplit, *, window: bool) -> Work:
    """One layer of each rank, on each of its chips: fields are [ranks].

    Each rank works for its own tokens. Heads are divided; the norm of the hidden row and the
    residual are done on every chip of the rank, and so are a latent's down-projections. `window`
    is for a layer that attends to the model's window only.
    """
    weights = layer_weights(model)
    tokens = totals.tokens
    attended = totals.window_attended if window else totals.attended
    head_macs = totals.window_head_macs if window else totals.head_macs
    read_tokens = (totals.window_context_tokens if window else totals.context_tokens) + tokens
    heads = model.heads * split.query_share
    projection_macs = (
        split.query_share * (weights.query.macs - weights.kv_up_macs)
        + split.kv_share * weights.kv.macs
        + weights.latent.macs
    )
    scores = heads * attended
    stored_bytes = (
        split.query_share * weights.query.stored_bytes
        + split.kv_share * weights.kv.stored_bytes
        + weights.latent.stored_bytes
        + weights.norms.stored_bytes
    )
    cache_bytes = split.cache_share * model.kv_bytes_per_token_layer
    return Work.of(
        tensor_flops=FLOPS_PER_MAC * (projection_macs * tokens + heads * head_macs),
        vector_flops=_vector_flops_per_token(model, split) * tokens + SOFTMAX_FLOPS * scores,
        scalar_ops=scores + (model.heads * split.query_share if model.sinks else 0) * tokens,
        hbm_bytes=stored_bytes * is_busy(tokens) + cache_bytes * read_tokens,
    )


def _vector_flops_per_token(model: ModelSpec, split: HeadSplit) -> float:
    """Norms, rotations, biases, sinks and the residual of one token."""
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
    return (
        NORM_FLOPS * (model.hidden + normed)
        + ROPE_FLOPS * rotated
        + BIAS_FLOPS * biases
        + RESIDUAL_FLOPS * model.hidden
        + sinks
    )
