"""Multi-head latent attention on one chip, folded: scores and sums are taken on the latent itself.

A token's cache is its normalised latent and one rotated key, for all heads; each chip of a rank
keeps all of it. Keys' up-projection is folded into queries, values' comes after the weighted sum,
in prefill as in decode, so that a token has the same bits in both.
"""

from typing import Final

import numpy as np

from emulator.arrays import Float32s
from emulator.compute.architecture import Architecture
from emulator.compute.attention_kernel import Scoring
from emulator.compute.layer_kernel import attend
from emulator.compute.norms import rms_norm
from emulator.compute.paged_kv import PagedKv
from emulator.compute.rope import Rotation, rotate
from emulator.compute.tiled_matmul import grouped_matmul, tiled_matmul
from emulator.compute.token_batch import TokenBatch
from emulator.compute.weights import LatentWeights
from emulator.formats.product_formats import FP32_PRODUCTS, ProductFormat

_NO_SINKS: Final = np.zeros(0, dtype=np.float32)

LATENT_NORM_EPS = 1e-6
"""Of the norms of latents, in transformers whatever config.json says of the others."""


def attend_latent(
    arch: Architecture,
    weights: LatentWeights,
    kv: PagedKv,
    layer: int,
    normed: Float32s,
    batch: TokenBatch,
    angles: Rotation,
    products: ProductFormat = FP32_PRODUCTS,
) -> Float32s:
    """Attend `normed` [tokens, hidden] over the chip's heads; writes the KV cache.

    Returns each head group's addend to the residual, [groups, tokens, hidden].
    """
    latent = arch.latent
    assert latent is not None, arch.family
    tokens, groups = len(normed), len(weights.output)
    down = tiled_matmul(normed, weights.query_down, products)
    down = rms_norm(down, weights.query_norm, LATENT_NORM_EPS)
    query = grouped_matmul(down, weights.query_up, products)
    query = query.reshape(groups, tokens, -1, latent.query_width_per_head)
    # [heads, tokens, nope_dim + rope_dim]
    by_head = query.transpose(0, 2, 1, 3).reshape(-1, tokens, latent.query_width_per_head)
    plain, turning = by_head[..., : latent.nope_dim], by_head[..., latent.nope_dim :]
    shared = tiled_matmul(normed, weights.kv_down, products)  # [tokens, kv_rank + rope_dim]
    cached = rms_norm(shared[:, : latent.kv_rank], weights.kv_norm, LATENT_NORM_EPS)
    key = rotate(shared[:, None, latent.kv_rank :], angles)  # [tokens, 1, rope_dim]
    keys = np.concatenate([cached[:, None], key], axis=2)
    kv.write(layer, batch.slots, keys, cached[:, None])
    folded = grouped_matmul(plain, weights.key_up, products)
    folded = folded.transpose(1, 0, 2)  # [tokens, heads, kv_rank]
    turned = rotate(turning.transpose(1, 0, 2), angles)  # [tokens, heads, rope_dim]
    queries = np.ascontiguousarray(np.concatenate([folded, turned], axis=2))
    scoring = Scoring(scale=arch.score_scale, window=0, sinks=_NO_SINKS)
    mixed = attend(queries, *kv.layer(layer), batch.spans, scoring)  # [tokens, heads, kv_rank]
    # [heads, tokens, value_dim]
    values = grouped_matmul(mixed.transpose(1, 0, 2), weights.value_up, products)
    by_group = values.reshape(groups, -1, tokens, latent.value_dim).transpose(0, 2, 1, 3)
    return grouped_matmul(by_group.reshape(groups, tokens, -1), weights.output, products)
