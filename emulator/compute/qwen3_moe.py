"""The Qwen3-MoE decoder on one chip, cut where tokens leave for other chips' experts.

One layer is: `attend_and_route` on the chip that owns the tokens, `run_experts` on the chips that
own the experts (see experts), `combine_experts` back on the owner. Residuals stay on the owner.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from emulator.compute.attention import attend
from emulator.compute.checkpoint import ModelShard
from emulator.compute.norms import rms_norm
from emulator.compute.paged_kv import PagedKv
from emulator.compute.rope import Rotation, rotate, rotation
from emulator.compute.router import combine, route
from emulator.compute.tiled_matmul import F32, tiled_matmul
from emulator.compute.token_batch import TokenBatch


@dataclass(frozen=True, slots=True, kw_only=True)
class Routed:
    """What a layer needs to be finished: `residual` [tokens, hidden] stays on the chip, `hidden`
    [tokens, hidden] goes to the experts `chosen` [tokens, k], added with `weights` [tokens, k].
    """

    residual: F32
    hidden: F32
    chosen: NDArray[np.int64]
    weights: F32


def embed(shard: ModelShard, batch: TokenBatch) -> F32:
    """Look up the batch's tokens: [tokens, hidden]."""
    return shard.embedding[batch.token_ids]


def batch_rotation(shard: ModelShard, batch: TokenBatch) -> Rotation:
    """Rotary angles of the batch, the same for every layer."""
    arch = shard.architecture
    return rotation(batch.positions, arch.head_dim, arch.rope_theta)


def attend_and_route(
    shard: ModelShard, kv: PagedKv, layer: int, x: F32, batch: TokenBatch, angles: Rotation
) -> Routed:
    """Run a layer on `x` [tokens, hidden] up to the choice of experts; writes the KV cache."""
    arch = shard.architecture
    weights = shard.layers[layer]
    tokens = x.shape[0]
    normed = rms_norm(x, weights.input_norm, arch.norm_eps)
    qkv = tiled_matmul(normed, weights.qkv).reshape(tokens, -1, arch.head_dim)
    key_end = arch.heads + arch.kv_heads
    # Queries and keys are normalised and rotated in one go: [tokens, heads + kv_heads, head_dim].
    turned = rotate(rms_norm(qkv[:, :key_end], weights.head_norms, arch.norm_eps), angles)
    query = turned[:, : arch.heads]
    kv.write(layer, batch.slots, turned[:, arch.heads :], qkv[:, key_end:])
    mixed = np.empty(query.shape, dtype=np.float32)  # [tokens, heads, head_dim]
    for items in batch.items:
        attend(query, kv, layer, items, mixed, scores_bounded=weights.scores_bounded)
    residual = x + tiled_matmul(mixed.reshape(tokens, -1), weights.output)
    hidden = rms_norm(residual, weights.post_norm, arch.norm_eps)
    chosen, expert_weights = route(
        hidden,
        weights.router,
        experts_per_token=arch.experts_per_token,
        normalise=arch.normalise_expert_weights,
    )
    return Routed(residual=residual, hidden=hidden, chosen=chosen, weights=expert_weights)


def combine_experts(routed: Routed, expert_rows: F32) -> F32:
    """Finish a layer: `expert_rows` [tokens, k, hidden] in the order of `routed.chosen`."""
    return routed.residual + combine(expert_rows, routed.weights)


def logits(shard: ModelShard, x: F32) -> F32:
    """Project final hidden states [rows, hidden] to [rows, vocab]."""
    normed = rms_norm(x, shard.final_norm, shard.architecture.norm_eps)
    return tiled_matmul(normed, shard.lm_head)
