"""One chip's weights, as the kernels multiply them.

Matrices are [inputs, outputs] in float32, with values of the shard's formats (see stored_weights),
or mapped: in the checkpoint's pages, as stored.
"""

from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from emulator.arrays import Float32s
from emulator.compute.architecture import Architecture
from emulator.compute.mapped_matrix import Matrices, Matrix
from emulator.formats.model_formats import FP32_MODEL, ModelFormats


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupedQueryWeights:
    """Attention by key/value heads. A head group is one of them with its query heads."""

    qkv: Matrices  # [groups, hidden, (group_heads + 2) * head_dim]: queries, key, value
    qkv_bias: Float32s | None  # [groups, 1, (group_heads + 2) * head_dim]
    head_norms: Float32s | None  # [group_heads + 1, head_dim], the queries' norm, then the key's
    output: Matrices  # [groups, group_heads * head_dim, hidden]
    output_bias: Float32s | None  # [hidden]
    sinks: Float32s | None  # [groups * group_heads]


@dataclass(frozen=True, slots=True, kw_only=True)
class LatentWeights:
    """Multi-head latent attention. A head group is some of the heads; all share one latent."""

    query_down: Matrix  # [hidden, query_rank]
    query_norm: Float32s  # [query_rank]
    query_up: Matrices  # [groups, query_rank, group_heads * (nope_dim + rope_dim)]
    kv_down: Matrix  # [hidden, kv_rank + rope_dim]
    kv_norm: Float32s  # [kv_rank]
    key_up: Matrices  # [heads of the chip, nope_dim, kv_rank]: folds a query into the latent
    value_up: Matrices  # [heads of the chip, kv_rank, value_dim]
    output: Matrices  # [groups, group_heads * value_dim, hidden]


@dataclass(frozen=True, slots=True, kw_only=True)
class DenseWeights:
    """A feed-forward network, divided by columns into parts; missing columns are zeros."""

    gate_up: Matrices  # [parts, hidden, 2 * part], gate columns of the part first
    down: Matrices  # [parts, part, hidden]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertSet:
    """Experts in slots of a layer; `biases` are [slots, 0] where the model has none.

    An EMPTY slot has zeros, or, mapped, None.
    """

    gate_up: Matrices  # [slots, hidden, 2 * intermediate]
    down: Matrices  # [slots, intermediate, hidden]
    biases: Float32s  # [slots, 2 * intermediate + hidden], of both products


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterWeights:
    """What chooses a token's experts; `choice_bias` does not change their weights."""

    matrix: Matrix  # [hidden, experts]
    bias: Float32s | None = None  # [experts], added to logits
    choice_bias: Float32s | None = None  # [experts], added to scores by which experts are chosen


@dataclass(frozen=True, slots=True, kw_only=True)
class MoeWeights:
    """A layer's router, its experts on this chip, and what every token uses beside them.

    Experts are overwritten when they move.
    """

    router: RouterWeights
    experts: ExpertSet
    shared: DenseWeights | None  # in one part


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerWeights:
    """One decoder layer on one chip."""

    input_norm: Float32s  # [hidden]
    attention: GroupedQueryWeights | LatentWeights
    post_norm: Float32s  # [hidden]
    feed_forward: DenseWeights | MoeWeights


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftWeights:
    """What is around a layer that guesses further tokens: multi-token prediction."""

    token_norm: Float32s  # [hidden]
    hidden_norm: Float32s  # [hidden]
    joining: Matrix  # [2 * hidden, hidden], of a token's embedding and the model's hidden row
    embedding: NDArray[Any]  # [vocab, hidden], float32 or as stored
    final_norm: Float32s  # [hidden]
    lm_head: Matrix  # [hidden, vocab]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShard:
    """One chip's part of a model; `groups` counts its head groups.

    With `drafts`, the layer that they are around is the last of `layers`.
    """

    architecture: Architecture
    groups: int
    embedding: NDArray[Any]  # [vocab, hidden], float32 or as stored
    layers: tuple[LayerWeights, ...]
    final_norm: Float32s  # [hidden]
    lm_head: Matrix  # [hidden, vocab]
    drafts: DraftWeights | None = None
    formats: ModelFormats = FP32_MODEL
