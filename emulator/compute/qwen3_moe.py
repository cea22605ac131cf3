"""The Qwen3-MoE decoder on one chip, cut where tokens or sums leave for other chips.

A layer: `attend` on every chip of a rank, over its head groups; `route_tokens` on the groups' sums;
`run_experts` on the experts' chips (see experts); `combine_experts` back on the owner.

Projections are one product per head group, added in group order, so that the text does not depend
on how many chips divide them.
"""

from dataclasses import dataclass

import numpy as np

from emulator.arrays import Float32s, Int64s
from emulator.compute.attention import attend as attend_items
from emulator.compute.checkpoint import ModelShard
from emulator.compute.experts import combine, route
from emulator.compute.paged_kv import PagedKv
from emulator.compute.rope import Rotation, rotate, rotation
from emulator.compute.tiled_matmul import grouped_matmul, tiled_matmul
from emulator.compute.token_batch import TokenBatch


def rms_norm(x: Float32s, weight: Float32s, eps: float) -> Float32s:
    """Return x / sqrt(mean(x^2) + eps) * weight over the last axis; same shape as `x`."""
    total = np.add.reduce(np.square(x), axis=-1, keepdims=True)
    mean_square = total * np.float32(1.0 / x.shape[-1])
    normed: Float32s = x * (np.float32(1.0) / np.sqrt(mean_square + np.float32(eps)))
    normed *= weight
    return normed


@dataclass(frozen=True, slots=True, kw_only=True)
class Routed:
    """`residual` [tokens, hidden] stays; `hidden` [tokens, hidden] goes to experts `chosen`
    [tokens, k], with output `weights` [tokens, k].
    """

    residual: Float32s
    hidden: Float32s
    chosen: Int64s
    weights: Float32s


def embed(shard: ModelShard, batch: TokenBatch) -> Float32s:
    """Look up the batch's tokens: [tokens, hidden]."""
    return shard.embedding[batch.token_ids]


def batch_rotation(shard: ModelShard, batch: TokenBatch) -> Rotation:
    """Rotary angles of the batch, the same for every layer."""
    arch = shard.architecture
    return rotation(batch.positions, arch.head_dim, arch.rope)


def attend(
    shard: ModelShard, kv: PagedKv, layer: int, x: Float32s, batch: TokenBatch, angles: Rotation
) -> Float32s:
    """Attend `x` [tokens, hidden] over the chip's head groups; writes the KV cache.

    Returns each group's addend to the residual, [groups, tokens, hidden].
    """
    arch = shard.architecture
    weights = shard.layers[layer]
    tokens, groups, group_heads = x.shape[0], shard.groups, arch.heads // arch.kv_heads
    normed = rms_norm(x, weights.input_norm, arch.norm_eps)
    qkv = grouped_matmul(normed, weights.qkv)  # [groups, tokens, (group_heads + 2) * head_dim]
    by_head = qkv.reshape(groups, tokens, -1, arch.head_dim).transpose(1, 0, 2, 3)
    # Queries and keys are normalised and rotated in one go.
    normed_heads = rms_norm(by_head[:, :, :-1], weights.head_norms, arch.norm_eps)
    turned = rotate(normed_heads, angles)  # [tokens, groups, group_heads + 1, head_dim]
    query = turned[:, :, :-1].reshape(tokens, -1, arch.head_dim)
    kv.write(layer, batch.slots, turned[:, :, -1], by_head[:, :, -1])
    mixed = np.empty(query.shape, dtype=np.float32)  # [tokens, groups * group_heads, head_dim]
    for items in batch.items:
        attend_items(query, kv, layer, items, mixed, scores_bounded=weights.scores_bounded)
    by_group = mixed.reshape(tokens, groups, group_heads * arch.head_dim).transpose(1, 0, 2)
    return grouped_matmul(by_group, weights.output)


def route_tokens(shard: ModelShard, layer: int, x: Float32s, attended: Float32s) -> Routed:
    """Add the sums of all head groups, [all groups, tokens, hidden], and choose experts."""
    arch = shard.architecture
    weights = shard.layers[layer]
    # Reducing an axis that is not the innermost adds its slices one after the other.
    residual = x + np.add.reduce(attended, axis=0)
    hidden = rms_norm(residual, weights.post_norm, arch.norm_eps)
    chosen, expert_weights = route(
        hidden,
        weights.router,
        experts_per_token=arch.experts_per_token,
        normalise=arch.normalise_expert_weights,
    )
    return Routed(residual=residual, hidden=hidden, chosen=chosen, weights=expert_weights)


def combine_experts(routed: Routed, expert_rows: Float32s) -> Float32s:
    """Finish a layer: `expert_rows` [tokens, k, hidden] in the order of `routed.chosen`."""
    return routed.residual + combine(expert_rows, routed.weights)


def logits(shard: ModelShard, x: Float32s) -> Float32s:
    """Project final hidden states [rows, hidden] to [rows, vocab]."""
    normed = rms_norm(x, shard.final_norm, shard.architecture.norm_eps)
    return tiled_matmul(normed, shard.lm_head)
