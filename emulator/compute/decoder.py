"""A decoder's layer on one chip, cut where tokens or sums leave for other chips.

`attend` on every chip of a rank, over its head groups; `add_attention` on the groups' sums; then a
dense network, `run_dense_part` on every chip and `add_up` on the sums, or experts: `route_tokens`,
`run_expert_set` on the experts' chips, `combine_experts` back on the owner.

Products are one per head group or part, added in their order, so that the text does not depend on
how many chips divide them.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np

from emulator.arrays import Float32s, Int64s
from emulator.compute.attention_kernel import Scoring, Turn, turn_heads
from emulator.compute.attention_kernel import attend as attend_paged
from emulator.compute.experts import run_dense, run_experts
from emulator.compute.feed_forward_kernel import add_parts, add_weighted
from emulator.compute.latent import attend_latent
from emulator.compute.norms import rms_norm
from emulator.compute.paged_kv import PagedKv
from emulator.compute.rope import Rotation, rotation
from emulator.compute.router import route
from emulator.compute.tiled_matmul import grouped_matmul, tiled_matmul
from emulator.compute.token_batch import TokenBatch
from emulator.compute.weights import (
    DenseWeights,
    ExpertSet,
    GroupedQueryWeights,
    LatentWeights,
    ModelShard,
    MoeWeights,
)

_NO_NUMBERS: Final = np.zeros(0, dtype=np.float32)
_NO_ROWS: Final = np.zeros((0, 0), dtype=np.float32)


@dataclass(frozen=True, slots=True, kw_only=True)
class Joined:
    """The stream after attention: `residual` [tokens, hidden] stays, `hidden` [tokens, hidden], its
    norm, goes to the feed-forward network.
    """

    residual: Float32s
    hidden: Float32s


@dataclass(frozen=True, slots=True, kw_only=True)
class Routed:
    """Tokens that go to experts `chosen` [tokens, k], with output `weights` [tokens, k]."""

    joined: Joined
    chosen: Int64s
    weights: Float32s


def embed(shard: ModelShard, batch: TokenBatch) -> Float32s:
    """Look up the batch's tokens: [tokens, hidden]."""
    return shard.embedding[batch.token_ids].astype(np.float32, copy=False)


def batch_rotation(shard: ModelShard, batch: TokenBatch) -> Rotation:
    """Rotary angles of the batch, the same for every layer."""
    arch = shard.architecture
    return rotation(batch.spans.positions, arch.rotary_dim, arch.rope)


def attend(
    shard: ModelShard, kv: PagedKv, layer: int, x: Float32s, batch: TokenBatch, angles: Rotation
) -> Float32s:
    """Attend `x` [tokens, hidden] over the chip's head groups; writes the KV cache.

    Returns each group's addend to the residual, [groups, tokens, hidden].
    """
    arch = shard.architecture
    weights = shard.layers[layer]
    normed = rms_norm(x, weights.input_norm, arch.norm_eps)
    if isinstance(weights.attention, LatentWeights):
        products = shard.formats.projection_products
        return attend_latent(arch, weights.attention, kv, layer, normed, batch, angles, products)
    return _attend_grouped(shard, weights.attention, kv, layer, normed, batch, angles)


def _attend_grouped(
    shard: ModelShard,
    weights: GroupedQueryWeights,
    kv: PagedKv,
    layer: int,
    normed: Float32s,
    batch: TokenBatch,
    angles: Rotation,
) -> Float32s:
    arch = shard.architecture
    tokens, group_heads = len(normed), arch.heads // arch.kv_heads
    products = shard.formats.projection_products
    # [groups, tokens, (group_heads + 2) * head_dim]
    qkv = grouped_matmul(normed, weights.qkv, products)
    bias, norms = weights.qkv_bias, weights.head_norms
    queries, keys, values = turn_heads(
        qkv,
        _NO_ROWS if bias is None else bias[:, 0],
        Turn(
            norms=_NO_ROWS if norms is None else norms,
            eps=arch.norm_eps,
            cos=angles.cos[:, 0],
            sin=angles.sin[:, 0],
        ),
    )
    kv.write(layer, batch.slots, keys, values)
    scoring = Scoring(
        scale=arch.score_scale,
        window=arch.windows[layer],
        sinks=_NO_NUMBERS if weights.sinks is None else weights.sinks,
    )
    # [tokens, groups * group_heads, head_dim]
    mixed = attend_paged(queries, *kv.layer(layer), batch.spans, scoring)
    by_group = mixed.reshape(tokens, -1, group_heads * arch.head_dim).transpose(1, 0, 2)
    return grouped_matmul(by_group, weights.output, products)


def add_attention(shard: ModelShard, layer: int, x: Float32s, attended: Float32s) -> Joined:
    """Add the sums of all head groups, [all groups, tokens, hidden], to the stream."""
    weights = shard.layers[layer]
    attention = weights.attention
    bias = attention.output_bias if isinstance(attention, GroupedQueryWeights) else None
    residual = add_parts(x, attended, _NO_NUMBERS if bias is None else bias)
    hidden = rms_norm(residual, weights.post_norm, shard.architecture.norm_eps)
    return Joined(residual=residual, hidden=hidden)


def add_up(residual: Float32s, addends: Float32s) -> Float32s:
    """Add all parts' `addends` [parts, tokens, hidden], in order, to `residual`."""
    return add_parts(residual, addends, _NO_NUMBERS)


def run_dense_part(shard: ModelShard, weights: DenseWeights, joined: Joined) -> Float32s:
    """The chip's parts of a dense network: addends [parts, tokens, hidden]."""
    gate, products = shard.architecture.gate, shard.formats.projection_products
    return run_dense(joined.hidden, weights.gate_up, weights.down, gate, products)


def route_tokens(shard: ModelShard, weights: MoeWeights, joined: Joined) -> Routed:
    """Choose the experts of each token."""
    arch = shard.architecture
    chosen, expert_weights = route(
        joined.hidden,
        weights.router,
        experts_per_token=arch.experts_per_token,
        routing=arch.routing,
        products=shard.formats.plain_products,
    )
    return Routed(joined=joined, chosen=chosen, weights=expert_weights)


def run_expert_set(
    shard: ModelShard, experts: ExpertSet, rows: Float32s, row_of_pair: Int64s, counts: Int64s
) -> Float32s:
    """Apply the first of a layer's `experts`, those that are counted, to their pairs; see
    `run_experts`.
    """
    arch, used = shard.architecture, len(counts)
    return run_experts(
        rows,
        row_of_pair,
        counts,
        experts.gate_up[:used],
        experts.down[:used],
        experts.biases[:used] if arch.expert_bias else None,
        arch.gate,
        shard.formats.expert_products,
    )


def combine_experts(
    shard: ModelShard, weights: MoeWeights, routed: Routed, expert_rows: Float32s
) -> Float32s:
    """Finish a layer: `expert_rows` [tokens, k, hidden] in the order of `routed.chosen`."""
    joined = routed.joined
    total = add_weighted(joined.residual, expert_rows, routed.weights)
    if weights.shared is not None:
        total = add_up(total, run_dense_part(shard, weights.shared, joined))
    return total


def logits(shard: ModelShard, x: Float32s) -> Float32s:
    """Project final hidden states [rows, hidden] to [rows, vocab]."""
    normed = rms_norm(x, shard.final_norm, shard.architecture.norm_eps)
    return tiled_matmul(normed, shard.lm_head, shard.formats.plain_products)
