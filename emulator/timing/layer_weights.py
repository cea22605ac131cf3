"""A model's weights as counts: multiply-accumulates of a token, and bytes."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Self

from emulator.specs import model_tensors
from emulator.specs.model import ModelSpec
from emulator.specs.model_tensors import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
    """Some tensors of one layer: MACs of one token's products with them, bytes, bias elements."""

    macs: int
    stored_bytes: int
    bias_elements: int

    @classmethod
    def of(cls, tensors: Iterable[Tensor]) -> Self:
        """Sum `tensors`; a vector makes no product."""
        held = tuple(tensors)
        return cls(
            macs=sum(tensor.parameters for tensor in held if tensor.rows > 1),
            stored_bytes=model_tensors.bytes_of(held),
            bias_elements=sum(
                tensor.parameters for tensor in held if tensor.name.endswith("_bias")
            ),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerWeightBytes:
    """Bytes of one layer's parts; an absent part is zero.

    `kv_up_macs`: of a latent's up-projection, counted in `query`; its tokens depend on attention's
    form.
    """

    query: Weights
    kv: Weights
    kv_up_macs: int
    latent: Weights
    norms: Weights
    router: Weights
    dense: Weights
    shared: Weights
    expert: Weights


@lru_cache(maxsize=64)
def layer_weights(model: ModelSpec) -> LayerWeightBytes:
    """Count `model` once; the cost model asks in every step."""
    query = model_tensors.query_tensors(model)
    return LayerWeightBytes(
        query=Weights.of(query),
        kv=Weights.of(model_tensors.kv_tensors(model)),
        kv_up_macs=sum(tensor.parameters for tensor in query if tensor.name == "kv_up"),
        latent=Weights.of(model_tensors.latent_tensors(model)),
        norms=Weights.of(model_tensors.norm_tensors(model)),
        router=Weights.of(model_tensors.router_tensors(model)),
        dense=Weights.of(model_tensors.dense_tensors(model)),
        shared=Weights.of(model_tensors.shared_tensors(model)),
        expert=Weights.of(model_tensors.expert_tensors(model)),
    )
