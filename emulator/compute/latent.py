"""Multi-head latent attention on one chip, folded: scores and sums are taken on the latent itself.

A token's cache is its normalised latent and one rotated key, for all heads; each chip of a rank
keeps all of it. Keys' up-projection is folded into queries, values' comes after the weighted sum,
in prefill as in decode, so that a token has the same bits in both.
"""

from typing import Final

import numpy as np

from emulator.arrays import Float32s
from emulator.compute.architecture import Architecture
from emulator.compute.attention_kernel import Places, Scoring, Spans
from emulator.compute.latent_kernel import LatentArrays
from emulator.compute.layer_kernel import attend, join_queries, turn_shared
from emulator.compute.norms import rms_norm
from emulator.compute.paged_kv import PagedKv
from emulator.compute.tiled_matmul import grouped_matmul, tiled_matmul
from emulator.compute.weights import LatentWeights
from emulator.formats.product_formats import ProductFormat

_NO_SINKS: Final = np.zeros(0, dtype=np.float32)

LATENT_NORM_EPS = 1e-6
"""Of the norms of latents, in transformers whatever config.json says of the others."""


def latent_scoring(arch: Architecture) -> Scoring:
    """How scores on latents are made: over all of a context."""
    return Scoring(scale=arch.score_scale, window=0, sinks=_NO_SINKS)


def latent_arrays(weights: LatentWeights, input_norm: Float32s, eps: float) -> LatentArrays:
    """The `weights` for the one kernel of all, with the layer's `input_norm` [hidden] and its
    `eps`: of float32 matrices in memory.
    """
    return LatentArrays(
        input_norm=input_norm,
        eps=eps,
        query_down=np.asarray(weights.query_down)[None],
        query_norm=weights.query_norm,
        query_up=weights.query_up,
        kv_down=np.asarray(weights.kv_down)[None],
        kv_norm=weights.kv_norm,
        latent_eps=LATENT_NORM_EPS,
        key_up=weights.key_up,
        value_up=weights.value_up,
        output=weights.output,
    )


def attend_latent_apart(
    arch: Architecture,
    weights: LatentWeights,
    kv: PagedKv,
    layer: int,
    normed: Float32s,
    places: Places,
    spans: Spans,
    products: ProductFormat,
) -> Float32s:
    """`layer_kernel.attend_latent` of `normed` [tokens, hidden] with products, or a cache, in other
    formats.

    Returns each head group's addend to the residual, [groups, tokens, hidden].
    """
    latent = arch.latent
    assert latent is not None, arch.family
    tokens, groups = len(normed), len(weights.output)
    down = tiled_matmul(normed, weights.query_down, products)
    down = rms_norm(down, weights.query_norm, LATENT_NORM_EPS)
    query = grouped_matmul(down, weights.query_up, products)
    shared = tiled_matmul(normed, weights.kv_down, products)  # [tokens, kv_rank + rope_dim]
    keys = turn_shared(shared, weights.kv_norm, LATENT_NORM_EPS, places.cos, places.sin)
    kv.write(layer, places.slots, keys, keys[:, :, : latent.kv_rank])
    divided = query.reshape(groups, tokens, -1, latent.query_width_per_head)
    # [heads, tokens, nope_dim + rope_dim]
    by_head = divided.transpose(0, 2, 1, 3).reshape(-1, tokens, latent.query_width_per_head)
    folded = grouped_matmul(by_head[..., : latent.nope_dim], weights.key_up, products)
    queries = join_queries(query, folded, places.cos, places.sin)
    mixed = attend(queries, *kv.layer(layer), spans, latent_scoring(arch))
    # [heads, tokens, value_dim]
    values = grouped_matmul(mixed.transpose(1, 0, 2), weights.value_up, products)
    by_group = values.reshape(groups, -1, tokens, latent.value_dim).transpose(0, 2, 1, 3)
    return grouped_matmul(by_group.reshape(groups, tokens, -1), weights.output, products)
