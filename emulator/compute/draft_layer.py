"""A layer that guesses further tokens (multi-token prediction): what is before and after it.

As vLLM's deepseek_mtp.py: the layer reads, at each position, the model's normed output there and
the embedding of the token that follows, and gives the hidden row for the token after that one.
"""

import numpy as np

from emulator.arrays import Float32s, Int64s
from emulator.compute.norms import rms_norm
from emulator.compute.tiled_matmul import tiled_matmul
from emulator.compute.weights import DraftWeights, ModelShard


def model_output(shard: ModelShard, x: Float32s) -> Float32s:
    """The last layer's output [rows, hidden] after the model's norm."""
    return rms_norm(x, shard.final_norm, shard.architecture.norm_eps)


def enter_draft_layer(
    shard: ModelShard, following: Int64s, positions: Int64s, hidden: Float32s
) -> Float32s:
    """The layer's input [rows, hidden], of `hidden` [rows, hidden] at `positions` and the tokens
    that follow; at position 0 the model itself was taught without them.
    """
    drafts, eps = _drafts(shard), shard.architecture.norm_eps
    embedded = drafts.embedding[following].astype(np.float32)
    embedded[positions == 0] = 0.0
    tokens = rms_norm(embedded, drafts.token_norm, eps)
    rows = np.concatenate([tokens, rms_norm(hidden, drafts.hidden_norm, eps)], axis=1)
    return tiled_matmul(rows, drafts.joining, shard.formats.plain_products)


def leave_draft_layer(shard: ModelShard, x: Float32s) -> Float32s:
    """The layer's output [rows, hidden], normed: for its head, and as `hidden` of a next guess."""
    return rms_norm(x, _drafts(shard).final_norm, shard.architecture.norm_eps)


def draft_logits(shard: ModelShard, hidden: Float32s) -> Float32s:
    """Project what `leave_draft_layer` returned to [rows, vocab]."""
    return tiled_matmul(hidden, _drafts(shard).lm_head, shard.formats.plain_products)


def _drafts(shard: ModelShard) -> DraftWeights:
    assert shard.drafts is not None, "the shard has no layer that drafts"
    return shard.drafts
