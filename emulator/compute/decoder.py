"""A decoder's layer on one chip, cut where tokens or sums leave for other chips.

`attend` on every chip of a rank, over its head groups; `add_attention` on the groups' sums; then a
dense network, `run_dense_part` on every chip and `add_up` on the sums, or experts: `route`,
`run_experts` on the experts' chips, `combine` back on the owner.

Of float32 matrices in memory each of these is a call of one kernel or two; other formats multiply
between kernels. Which it is, a checkpoint and its formats decide (tiled_matmul.are_compiled), never
a batch or a partition.

Products are one per head group or part, added in their order, so that the text does not depend on
how many chips divide them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from emulator.arrays import Float32s, Int64s
from emulator.compute.attention_kernel import HeadWeights, Places, Scoring, TurnedBy
from emulator.compute.experts import ExpertNetworks, run_dense
from emulator.compute.latent import attend_latent_apart, latent_arrays, latent_scoring
from emulator.compute.latent_kernel import LatentArrays
from emulator.compute.layer_kernel import (
    add_parts,
    add_weighted,
    attend,
    attend_heads,
    attend_latent,
    join,
    norm_and_project,
    turn_heads,
)
from emulator.compute.layer_table import ExpertLayer, LayerTable, table_of
from emulator.compute.norms import rms_norm
from emulator.compute.paged_kv import PagedKv
from emulator.compute.product_kernel import panels_of
from emulator.compute.rope import Rotation, rotation
from emulator.compute.router import Router
from emulator.compute.tiled_matmul import are_compiled, grouped_matmul, tiled_matmul
from emulator.compute.token_batch import TokenBatch
from emulator.compute.weights import (
    DenseWeights,
    GroupedQueryWeights,
    LatentWeights,
    ModelShard,
    MoeWeights,
)

_NO_NUMBERS: Final = np.zeros(0, dtype=np.float32)
_NO_ROWS: Final = np.zeros((0, 0), dtype=np.float32)
_NO_MATRICES: Final = np.zeros((0, 0, 0), dtype=np.float32)


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


def places_of(batch: TokenBatch, angles: Rotation) -> Places:
    """Where the batch's tokens are, for kernels."""
    return Places(batch.slots, angles.cos[:, 0], angles.sin[:, 0])


def add_up(residual: Float32s, addends: Float32s) -> Float32s:
    """Add all parts' `addends` [parts, tokens, hidden], in order, to `residual`."""
    return add_parts(residual, addends, _NO_NUMBERS)


class DecoderLayer:
    """A layer of a shard, prepared: what does not change from step to step is laid out once.

    Experts may be overwritten in place.
    """

    def __init__(self, shard: ModelShard, index: int) -> None:
        arch, weights, formats = shard.architecture, shard.layers[index], shard.formats
        self._architecture = arch
        self._index = index
        self._weights = weights
        self._products = formats.projection_products
        attention = weights.attention
        self._heads: HeadWeights | None = None  # where one kernel does all of attention
        self._latent: LatentArrays | None = None  # likewise
        self._output_bias = _NO_NUMBERS
        if isinstance(attention, GroupedQueryWeights):
            if attention.output_bias is not None:
                self._output_bias = attention.output_bias
            sinks = _NO_NUMBERS if attention.sinks is None else attention.sinks
            self._scoring = Scoring(arch.score_scale, arch.windows[index], sinks)
            if are_compiled(attention.qkv, self._products) and formats.keeps_cache_as_it_is:
                self._heads = self._head_weights(attention, attention.qkv, attention.output)
        else:
            self._scoring = latent_scoring(arch)
            if are_compiled(attention.query_up, self._products) and formats.keeps_cache_as_it_is:
                self._latent = latent_arrays(attention, weights.input_norm, arch.norm_eps)
        network = weights.feed_forward
        if isinstance(network, MoeWeights):
            self._router = Router(
                network.router,
                experts_per_token=arch.experts_per_token,
                routing=arch.routing,
                products=formats.plain_products,
            )
            self._experts = ExpertNetworks(
                network.experts.gate_up,
                network.experts.down,
                network.experts.biases if arch.expert_bias else None,
                arch.gate,
                formats.expert_products,
            )

    def for_table(self) -> ExpertLayer | None:
        """The layer as kernels have it, where they make all of its products and it has experts that
        are all on chips of their own.
        """
        network = self._weights.feed_forward
        if self._heads is None or not isinstance(network, MoeWeights) or network.shared is not None:
            return None
        router, experts = self._router.compiled, self._experts.compiled
        if router is None or experts is None:
            return None
        post_norm = self._weights.post_norm
        return ExpertLayer(
            self._heads, self._scoring, self._output_bias, post_norm, *router, *experts
        )

    @property
    def has_experts(self) -> bool:
        """Whether tokens leave for experts, or a dense network follows attention."""
        return isinstance(self._weights.feed_forward, MoeWeights)

    def attend(self, kv: PagedKv, x: Float32s, batch: TokenBatch, angles: Rotation) -> Float32s:
        """Attend `x` [tokens, hidden] over the chip's head groups; writes the KV cache.

        Returns each group's addend to the residual, [groups, tokens, hidden].
        """
        places = places_of(batch, angles)
        cache = kv.layer(self._index)
        if self._heads is not None:
            return attend_heads(x, cache, self._heads, places, batch.spans, self._scoring)
        if self._latent is not None:
            return attend_latent(x, cache, self._latent, places, batch.spans, self._scoring)
        arch, attention = self._architecture, self._weights.attention
        normed = rms_norm(x, self._weights.input_norm, arch.norm_eps)
        if isinstance(attention, LatentWeights):
            return attend_latent_apart(
                arch, attention, kv, self._index, normed, places, batch.spans, self._products
            )
        return self._attend_apart(attention, kv, normed, batch, angles)

    def _attend_apart(
        self,
        weights: GroupedQueryWeights,
        kv: PagedKv,
        normed: Float32s,
        batch: TokenBatch,
        angles: Rotation,
    ) -> Float32s:
        """`attend_heads` with products, or a cache, in other formats."""
        arch = self._architecture
        qkv = grouped_matmul(normed, weights.qkv, self._products)
        heads = self._head_weights(weights, _NO_MATRICES, _NO_MATRICES)
        turn = TurnedBy(heads.norms, heads.eps, angles.cos[:, 0], angles.sin[:, 0])
        queries, keys, values = turn_heads(qkv, heads.bias, turn)
        kv.write(self._index, batch.slots, keys, values)
        # [tokens, groups * group_heads, head_dim]
        mixed = attend(queries, *kv.layer(self._index), batch.spans, self._scoring)
        group_width = arch.heads // arch.kv_heads * arch.head_dim
        by_group = mixed.reshape(len(normed), -1, group_width).transpose(1, 0, 2)
        return grouped_matmul(by_group, weights.output, self._products)

    def _head_weights(
        self, weights: GroupedQueryWeights, qkv: Float32s, output: Float32s
    ) -> HeadWeights:
        return HeadWeights(
            input_norm=self._weights.input_norm,
            eps=self._architecture.norm_eps,
            qkv=qkv,
            bias=_NO_ROWS if weights.qkv_bias is None else weights.qkv_bias[:, 0],
            norms=_NO_ROWS if weights.head_norms is None else weights.head_norms,
            output=output,
        )

    def add_attention(self, x: Float32s, attended: Float32s) -> Joined:
        """Add the sums of all head groups, [all groups, tokens, hidden], to the stream."""
        eps = self._architecture.norm_eps
        joined = join(x, attended, self._output_bias, self._weights.post_norm, eps)
        return Joined(residual=joined[0], hidden=joined[1])

    def run_dense_part(self, joined: Joined) -> Float32s:
        """The chip's parts of a dense network: addends [parts, tokens, hidden]."""
        network = self._weights.feed_forward
        assert isinstance(network, DenseWeights), self._index
        return self._run_dense(network, joined)

    def _run_dense(self, network: DenseWeights, joined: Joined) -> Float32s:
        gate = self._architecture.gate
        return run_dense(joined.hidden, network.gate_up, network.down, gate, self._products)

    def route(self, joined: Joined) -> Routed:
        """Choose the experts of each token."""
        chosen, weights = self._router.route(joined.hidden)
        return Routed(joined=joined, chosen=chosen, weights=weights)

    def run_experts(self, rows: Float32s, row_of_pair: Int64s, counts: Int64s) -> Float32s:
        """Apply the chip's experts to their pairs; see `ExpertNetworks`."""
        return self._experts.run(rows, row_of_pair, counts)

    def combine(self, routed: Routed, answers: Float32s) -> Float32s:
        """Finish the layer: `answers` [tokens, k, hidden] in the order of `routed.chosen`."""
        total = add_weighted(routed.joined.residual, answers, routed.weights)
        network = self._weights.feed_forward
        if isinstance(network, MoeWeights) and network.shared is not None:
            total = add_up(total, self._run_dense(network.shared, routed.joined))
        return total


def decoder_layers(shard: ModelShard) -> tuple[DecoderLayer, ...]:
    """All layers of a shard."""
    return tuple(DecoderLayer(shard, index) for index in range(len(shard.layers)))


def layer_table(layers: Sequence[DecoderLayer]) -> LayerTable | None:
    """The table of all `layers`, if kernels make all of their products."""
    found = [layer.for_table() for layer in layers]
    return table_of([each for each in found if each]) if all(found) else None


class OutputHead:
    """The end of a shard's model: its final norm, and the projection to logits.

    Laid out in panels when first asked: not every chip samples.
    """

    __slots__ = ("_panels", "_shard")

    def __init__(self, shard: ModelShard) -> None:
        self._shard = shard
        self._panels: Float32s | None = None

    def logits(self, x: Float32s) -> Float32s:
        """Project final hidden states [rows, hidden] to [rows, vocab]."""
        shard, eps = self._shard, self._shard.architecture.norm_eps
        if are_compiled(shard.lm_head, shard.formats.plain_products):
            if self._panels is None:
                self._panels = panels_of(shard.lm_head)
            vocab = shard.architecture.vocab
            return norm_and_project(x, shard.final_norm, eps, self._panels, vocab)
        normed = rms_norm(x, shard.final_norm, eps)
        return tiled_matmul(normed, shard.lm_head, shard.formats.plain_products)
