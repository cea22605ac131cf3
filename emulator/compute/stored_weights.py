"""A chip's weights in the formats that they are stored in, as the numbers that their codes mean.

Matrices are rounded as the kernels hold them: a block of FP8's 128 x 128 lies within a head group,
a part of a dense network, or an expert. Those of a checkpoint in FP8 have its own blocks already,
and are turned into MXFP8 alone. Norms and biases stay in float32.
"""

from dataclasses import fields, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from emulator.compute.architecture import Architecture
from emulator.compute.checkpoint import read_architecture
from emulator.compute.mapped_matrix import MappedMatrix, are_mapped
from emulator.compute.tensors import has_bf16_alone, is_mapped
from emulator.compute.weights import (
    DenseWeights,
    ExpertSet,
    GroupedQueryWeights,
    LatentWeights,
    ModelShard,
    MoeWeights,
    RouterWeights,
)
from emulator.formats.model_formats import ModelFormats
from emulator.formats.product_formats import ProductFormat
from emulator.specs.weight_format import WeightFormat

_MATRICES = {
    "gate_up",
    "down",
    "qkv",
    "output",
    "query_down",
    "query_up",
    "kv_down",
    "key_up",
    "value_up",
    "matrix",
}

_Weights = TypeVar(
    "_Weights", bound=GroupedQueryWeights | LatentWeights | DenseWeights | RouterWeights
)


def maps_weights(directory: Path, formats: ModelFormats) -> bool:
    """Whether chips map the matrices in `directory`: large ones, used as they are stored.

    FP8 in squares is rounded, to the array's MX blocks.
    """
    return is_mapped(directory) and (
        formats.keeps_weights_as_they_are or _are_of_checkpoint(formats, directory)
    )


def _are_of_checkpoint(formats: ModelFormats, directory: Path) -> bool:
    """Whether `formats` round no weight in `directory`: BF16, with experts in MXFP4 or without."""
    in_mxfp4 = read_architecture(directory).mxfp4_experts
    stored = ModelFormats(
        plain=WeightFormat.BF16,
        projections=WeightFormat.BF16,
        experts=WeightFormat.MXFP4 if in_mxfp4 else WeightFormat.BF16,
        kv_bytes_per_element=formats.kv_bytes_per_element,
    )
    return formats == stored and has_bf16_alone(directory)


def store_shard(shard: ModelShard, formats: ModelFormats) -> ModelShard:
    """`shard` with its matrices rounded; experts are written in place. Mapped ones are as stored,
    see `maps_weights`.
    """
    if formats.keeps_weights_as_they_are or isinstance(shard.lm_head, MappedMatrix):
        return replace(shard, formats=formats)
    arch = shard.architecture
    of_weights = _not_twice(formats, arch)
    plain, projections = of_weights.plain_products, of_weights.projection_products
    layers = []
    for layer in shard.layers:
        network = layer.feed_forward
        if isinstance(network, MoeWeights):
            store_experts(network.experts, formats, arch)
            shared = network.shared
            network = replace(
                network,
                router=_stored(network.router, plain),
                shared=None if shared is None else _stored(shared, projections),
            )
        else:
            network = _stored(network, projections)
        attention = _stored(layer.attention, projections)
        layers.append(replace(layer, attention=attention, feed_forward=network))
    drafts = shard.drafts
    if drafts is not None:
        assert not isinstance(drafts.joining, MappedMatrix), "mapped matrices are as stored"
        assert not isinstance(drafts.lm_head, MappedMatrix), "mapped matrices are as stored"
        drafts = replace(
            drafts,
            joining=plain.store(drafts.joining),
            embedding=plain.store(drafts.embedding),
            lm_head=plain.store(drafts.lm_head),
        )
    return replace(
        shard,
        formats=formats,
        drafts=drafts,
        embedding=plain.store(shard.embedding),
        layers=tuple(layers),
        lm_head=plain.store(shard.lm_head),
    )


def store_experts(experts: ExpertSet, formats: ModelFormats, arch: Architecture) -> None:
    """Round experts in place; slots of zeros stay unwritten, and take no memory. Mapped experts are
    as stored.
    """
    if formats.keeps_weights_as_they_are or are_mapped(experts.gate_up):
        return
    products = _not_twice(formats, arch).expert_products
    for matrices in (experts.gate_up, experts.down):
        for slot in np.flatnonzero(matrices.any(axis=(1, 2))):
            matrices[slot] = products.store(matrices[slot])


def _not_twice(formats: ModelFormats, arch: Architecture) -> ModelFormats:
    """`formats` in which to round: FP8's blocks, but for weights that are stored in such."""
    if arch.fp8_block is None:
        return formats
    return replace(
        formats, projections=_of_fp8(formats.projections), experts=_of_fp8(formats.experts)
    )


def _of_fp8(storage: WeightFormat) -> WeightFormat:
    return WeightFormat.MXFP8 if storage is WeightFormat.FP8_BLOCK128 else storage


def _stored(weights: _Weights, products: ProductFormat) -> _Weights:
    matrices: dict[str, Any] = {
        field.name: products.store(getattr(weights, field.name))
        for field in fields(weights)
        if field.name in _MATRICES
    }
    return replace(weights, **matrices)
