"""Activations kept by a forward pass for the backward pass, per token and per (token, expert) pair.

Counted from the architecture, in BF16: the inputs of every product and nonlinear function.
Attention keeps its scores' sums, in FP32, and recomputes the scores (FlashAttention, arXiv
2205.14135).
"""

from dataclasses import dataclass
from typing import Final, Self

from emulator.specs.model import ModelSpec
from emulator.specs.training_recipe import Recompute

KEPT_BYTES: Final = 2  # BF16, whatever precision products run in
FP32_BYTES: Final = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedActivations:
    """Bytes kept by one layer: of each token by part, and of each pair on the expert's chip."""

    layer_input: int
    attention: int
    dense: int
    router: int
    expert_pair: int

    @classmethod
    def of(cls, model: ModelSpec, recompute: Recompute = Recompute.NONE, *, tp: int = 1) -> Self:
        """Bytes of a layer of `model` under `recompute`.

        Attention keeps its input, the normed input, queries, keys, values, the heads' outputs and
        one FP32 sum a head; of a latent also its two small vectors. Feed-forward networks keep
        their input and the normed one, gate, up and their product; routed experts those three and
        their input on the expert's chip, and the output on the token's. A router keeps a
        probability of every expert, in FP32.

        `tp` chips have a part each of the hidden rows of a rank's tokens; `model` has already one
        chip's heads and columns. A router's bytes are of a chip's own tokens.
        """
        row, hidden, latent = -(-model.hidden // tp), model.hidden, model.latent
        layer_input = KEPT_BYTES * row
        if recompute is Recompute.FULL:
            return cls(
                layer_input=layer_input, attention=layer_input, dense=0, router=0, expert_pair=0
            )
        rows = 2 if recompute is Recompute.NONE else 1  # with the normed ones
        gated = 3 if recompute is Recompute.NONE else 2  # with the product of both
        if latent is None:
            heads = model.query_width + 2 * model.kv_width
        else:
            values = model.heads * (latent.query_width_per_head + latent.value_dim)
            unfolded = model.query_width + values if recompute is Recompute.NONE else 0
            heads = unfolded + latent.query_rank + latent.cached_width
        answers = model.heads * model.head_dim
        shared = gated * model.shared_experts * model.expert_intermediate
        picked = model.experts_per_token * hidden
        return cls(
            layer_input=layer_input,
            attention=KEPT_BYTES * (rows * row + heads + answers) + FP32_BYTES * model.heads,
            dense=KEPT_BYTES * (rows * row + gated * model.dense_intermediate),
            router=KEPT_BYTES * (rows * hidden + shared + picked) + FP32_BYTES * model.experts,
            expert_pair=KEPT_BYTES * (hidden + gated * model.expert_intermediate),
        )
