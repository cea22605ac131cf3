"""Every weight of a model, once: the tensors of a layer and of the ends, with their storage.

Parameters, bytes and a token's matrix products are all sums over these tables. Shapes follow
Hugging Face transformers: llama, mixtral, qwen3_moe, gpt_oss, deepseek_v3.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from emulator.specs.tensor_group import TensorGroup, TensorSplit
from emulator.specs.weight_format import WeightFormat

if TYPE_CHECKING:
    from emulator.specs.model import ModelSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Tensor:
    """`rows` x `columns` weights, of a product from `columns` to `rows`; a vector has one row."""

    name: str
    rows: int
    columns: int
    storage: WeightFormat

    @property
    def parameters(self) -> int:
        """Weights, without scales of the storage format."""
        return self.rows * self.columns

    @property
    def stored_bytes(self) -> int:
        """Weights with their scales."""
        return self.storage.matrix_bytes(self.rows, self.columns)


Tensors = tuple[Tensor, ...]


def parameters_of(tensors: Iterable[Tensor]) -> int:
    """Sum of their weights."""
    return sum(tensor.parameters for tensor in tensors)


def bytes_of(tensors: Iterable[Tensor]) -> int:
    """Sum of their bytes."""
    return sum(tensor.stored_bytes for tensor in tensors)


def query_tensors(model: ModelSpec) -> Tensors:
    """Tensors of a layer's query heads: their projections, and the output projection."""
    latent, storage = model.latent, model.projection_format
    if latent is None:
        query = _matrix("query", model.query_width, model.hidden, storage)
        output = _matrix("output", model.hidden, model.query_width, storage)
        bias = _vectors(model, model.attention_bias, query_bias=model.query_width)
        return (query, output, *bias, *_vectors(model, model.sinks, sinks=model.heads))
    queries = model.heads * latent.query_width_per_head
    ups = model.heads * latent.up_width_per_head
    return (
        _matrix("query_up", queries, latent.query_rank, storage),
        _matrix("kv_up", ups, latent.kv_rank, storage),
        _matrix("output", model.hidden, model.heads * latent.value_dim, storage),
    )


def kv_tensors(model: ModelSpec) -> Tensors:
    """Tensors of a layer's key and value heads; none where a latent replaces them."""
    if model.latent is not None:
        return ()
    width, storage = model.kv_width, model.projection_format
    return (
        _matrix("key", width, model.hidden, storage),
        _matrix("value", width, model.hidden, storage),
        *_vectors(model, model.attention_bias, key_bias=width, value_bias=width),
    )


def latent_tensors(model: ModelSpec) -> Tensors:
    """A layer's down-projections to the latents of queries and of keys and values."""
    latent, storage = model.latent, model.projection_format
    if latent is None:
        return ()
    return (
        _matrix("query_down", latent.query_rank, model.hidden, storage),
        _matrix("kv_down", latent.cached_width, model.hidden, storage),
    )


def norm_tensors(model: ModelSpec) -> Tensors:
    """A layer's norms, and the bias of its output projection, which is added once."""
    latent = model.latent
    return (
        *_vectors(model, True, attention_norm=model.hidden, feed_forward_norm=model.hidden),
        *_vectors(model, model.query_key_norms, query_norm=model.head_dim, key_norm=model.head_dim),
        *_vectors(model, model.attention_bias, output_bias=model.hidden),
        *(
            ()
            if latent is None
            else _vectors(model, True, query_norm=latent.query_rank, kv_norm=latent.kv_rank)
        ),
    )


def router_tensors(model: ModelSpec) -> Tensors:
    """The router of a layer with experts."""
    if not model.experts:
        return ()
    router = (_matrix("router", model.experts, model.hidden, model.plain_format),)
    if model.router_bias is None:
        return router
    return (*router, _matrix("router_bias", 1, model.experts, model.router_bias))


def expert_tensors(model: ModelSpec) -> Tensors:
    """One routed expert of one layer."""
    width = model.expert_intermediate
    if not width:
        return ()
    biases = _vectors(
        model, model.expert_bias, gate_bias=width, up_bias=width, down_bias=model.hidden
    )
    return (*_feed_forward(model, width, model.expert_format), *biases)


def shared_tensors(model: ModelSpec) -> Tensors:
    """A layer's shared experts, as one feed-forward network."""
    width = model.shared_experts * model.expert_intermediate
    return _feed_forward(model, width, model.projection_format) if width else ()


def dense_tensors(model: ModelSpec) -> Tensors:
    """The feed-forward network of a layer without experts."""
    width = model.dense_intermediate
    return _feed_forward(model, width, model.projection_format) if width else ()


def embedding_tensors(model: ModelSpec) -> Tensors:
    """The table of input embeddings."""
    return (_matrix("embedding", model.vocab, model.hidden, model.plain_format),)


def lm_head_tensors(model: ModelSpec) -> Tensors:
    """The LM head; empty when it is the embedding's table."""
    if model.tied_embeddings:
        return ()
    return (_matrix("lm_head", model.vocab, model.hidden, model.plain_format),)


def final_norm_tensors(model: ModelSpec) -> Tensors:
    """The norm before the LM head."""
    return _vectors(model, True, final_norm=model.hidden)


def tensor_groups(model: ModelSpec) -> tuple[TensorGroup, ...]:
    """All weights in groups of one division each, without empty groups.

    Embedding and LM head are divided by rows of the vocabulary, like columns (as in vLLM's and the
    vendor's tensor parallelism). With every expert they sum to `model.weight_bytes`.
    """
    kv = bytes_of(kv_tensors(model))
    attention = bytes_of(query_tensors(model)) + kv
    norms = model.layers * bytes_of(norm_tensors(model)) + bytes_of(final_norm_tensors(model))
    groups = (
        _group("embedding", TensorSplit.COLUMNS, bytes_of(embedding_tensors(model))),
        _group("lm_head", TensorSplit.COLUMNS, bytes_of(lm_head_tensors(model))),
        TensorGroup(
            name="attention",
            split=TensorSplit.HEADS,
            copy_bytes=model.layers * attention,
            kv_bytes=model.layers * kv,
        ),
        _group("latent", TensorSplit.WHOLE, model.layers * bytes_of(latent_tensors(model))),
        _group("norms", TensorSplit.WHOLE, norms),
        _group("router", TensorSplit.WHOLE, model.moe_layers * bytes_of(router_tensors(model))),
        _group("dense", TensorSplit.COLUMNS, model.dense_layers * bytes_of(dense_tensors(model))),
        _group("shared", TensorSplit.COLUMNS, model.moe_layers * bytes_of(shared_tensors(model))),
        TensorGroup(
            name="experts",
            split=TensorSplit.EXPERT,
            copy_bytes=bytes_of(expert_tensors(model)),
            layers=model.moe_layers,
        ),
    )
    return tuple(group for group in groups if group.copy_bytes)


def _group(name: str, split: TensorSplit, copy_bytes: int) -> TensorGroup:
    return TensorGroup(name=name, split=split, copy_bytes=copy_bytes)


def _matrix(name: str, rows: int, columns: int, storage: WeightFormat) -> Tensor:
    return Tensor(name=name, rows=rows, columns=columns, storage=storage)


def _vectors(model: ModelSpec, present: bool, **widths: int) -> Tensors:
    """One vector per name and width, unquantised; none unless `present`."""
    if not present:
        return ()
    return tuple(_matrix(name, 1, width, model.plain_format) for name, width in widths.items())


def _feed_forward(model: ModelSpec, width: int, storage: WeightFormat) -> Tensors:
    return (
        _matrix("gate", width, model.hidden, storage),
        _matrix("up", width, model.hidden, storage),
        _matrix("down", model.hidden, width, storage),
    )
