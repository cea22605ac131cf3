"""The decoder in training: attention blocks, and the layer cut where tokens leave for experts.

Gradients are added to `grads`, so that batches may come in pieces. Between projections arrays are
[heads, head_dim, tokens], see causal_attention, with query, key and value heads.

A layer forward is `attend_forward`, `route_forward`, and the experts' owners (training_experts),
with weighted sums; backward, the reverse. `embed` comes first, `head` last.
"""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from emulator.arrays import Float32s, Int32s
from emulator.compute.architecture import Architecture
from emulator.compute.causal_attention import (
    AttentionForward,
    AttentionInputs,
    BatchShape,
    attention_backward,
    attention_forward,
    scores_are_bounded,
)
from emulator.compute.mixed_precision import Precision, as_operand
from emulator.compute.parameters import Parameters
from emulator.compute.rope import attention_factor, rotation
from emulator.compute.rope_settings import RopeSettings
from emulator.compute.training_norms import rms_norm_backward, rms_norm_forward


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionTape:
    """State of `attend_forward` for `attend_backward`; `residual` goes on to the router."""

    shape: BatchShape
    x: Float32s  # [tokens, hidden]
    x_scale: Float32s  # [tokens, 1]
    normed: Float32s  # [tokens, hidden], an operand
    heads: Float32s  # [heads + kv_heads, head_dim, tokens], queries and keys before their norms
    heads_scale: Float32s  # [heads + kv_heads, 1, tokens]
    inputs: AttentionInputs
    attended: AttentionForward
    mixed: Float32s  # [heads * head_dim, tokens], an operand
    residual: Float32s  # [tokens, hidden]


def attend_forward(
    dense: Parameters, layer: int, x: Float32s, shape: BatchShape, precision: Precision
) -> AttentionTape:
    """Run a layer's attention block on `x` [tokens, hidden], into `tape.residual`."""
    arch = dense.layout.architecture
    weights, prefix = dense.operands(precision), f"layers.{layer}"
    normed, x_scale = rms_norm_forward(x, weights[f"{prefix}.input_norm"], arch.norm_eps)
    as_operand(normed, precision)
    qkv = np.matmul(weights[f"{prefix}.qkv"].T, normed.T)
    heads = qkv.reshape(-1, arch.head_dim, shape.tokens)[: -arch.kv_heads]
    turned, heads_scale = rms_norm_forward(
        heads, _head_weights(weights, prefix, arch), arch.norm_eps, axis=1
    )
    rotated = np.empty((len(qkv) // arch.head_dim, *turned.shape[1:]), dtype=x.dtype)
    _rotate(turned, shape, arch, out=rotated[: -arch.kv_heads])
    rotated[: arch.heads] *= arch.head_dim**-0.5
    rotated[-arch.kv_heads :] = qkv.reshape(rotated.shape)[-arch.kv_heads :]
    as_operand(rotated, precision)
    query, key, value = _parts(rotated, shape, arch)
    bounded = scores_are_bounded(
        weights[f"{prefix}.query_norm"],
        weights[f"{prefix}.key_norm"],
        rotation_gain=attention_factor(arch.rope.scaling),
    )
    inputs = AttentionInputs(
        query=query, key=key, value=value, bounded=bounded, precision=precision
    )
    attended = attention_forward(inputs)
    mixed = as_operand(attended.mixed.reshape(-1, shape.tokens).copy(), precision)
    residual = np.matmul(mixed.T, weights[f"{prefix}.output"])
    residual += x
    return AttentionTape(
        shape=shape,
        x=x,
        x_scale=x_scale,
        normed=normed,
        heads=heads,
        heads_scale=heads_scale,
        inputs=inputs,
        attended=attended,
        mixed=mixed,
        residual=residual,
    )


def attend_backward(
    dense: Parameters, grads: Parameters, layer: int, tape: AttentionTape, grad_residual: Float32s
) -> Float32s:
    """Turn `grad_residual` dL/dresidual [tokens, hidden] into dL/dx; adds to `grads`."""
    arch, shape, precision = dense.layout.architecture, tape.shape, tape.inputs.precision
    weights, prefix = dense.operands(precision), f"layers.{layer}"
    grad_out = as_operand(grad_residual.copy(), precision)
    grads[f"{prefix}.output"][:] += tape.mixed @ grad_out
    grad_mixed = np.matmul(weights[f"{prefix}.output"], grad_out.T)
    # Gradients of rotated queries and keys and of values, in the order of `qkv`'s columns.
    grad_qkv = np.zeros((arch.heads + 2 * arch.kv_heads, arch.head_dim, shape.tokens), tape.x.dtype)
    attention_backward(
        tape.inputs,
        tape.attended,
        grad_mixed.reshape(tape.inputs.query.shape),
        _parts(grad_qkv, shape, arch),
    )
    grad_qkv[: arch.heads] *= arch.head_dim**-0.5
    turned_back = _rotate(grad_qkv[: -arch.kv_heads], shape, arch, back=True)
    grad_qkv[: -arch.kv_heads], by_weight = rms_norm_backward(
        tape.heads, tape.heads_scale, _head_weights(weights, prefix, arch), turned_back, axis=1
    )
    by_head = by_weight.sum(axis=2)  # [heads + kv_heads, head_dim]
    grads[f"{prefix}.query_norm"][:] += by_head[: arch.heads].sum(axis=0)
    grads[f"{prefix}.key_norm"][:] += by_head[arch.heads :].sum(axis=0)
    columns = as_operand(grad_qkv, precision).reshape(-1, shape.tokens)
    grads[f"{prefix}.qkv"][:] += (columns @ tape.normed).T
    grad_normed = np.matmul(columns.T, weights[f"{prefix}.qkv"].T)
    grad_x, by_weight = rms_norm_backward(
        tape.x, tape.x_scale, weights[f"{prefix}.input_norm"], grad_normed
    )
    grads[f"{prefix}.input_norm"][:] += by_weight.sum(axis=0)
    grad_x += grad_residual
    return grad_x


def _head_weights(weights: Parameters, prefix: str, arch: Architecture) -> Float32s:
    """The norm's weight of each query and key head: [heads + kv_heads, head_dim, 1]."""
    both = [weights[f"{prefix}.query_norm"], weights[f"{prefix}.key_norm"]]
    return np.repeat(both, [arch.heads, arch.kv_heads], axis=0)[:, :, None]


def _parts(
    heads: Float32s, shape: BatchShape, arch: Architecture
) -> tuple[Float32s, Float32s, Float32s]:
    """Views of queries, keys and values, [their heads, head_dim, sequences, length]."""
    by_sequence = heads.reshape(*heads.shape[:2], shape.sequences, shape.length)
    key_end = arch.heads + arch.kv_heads
    return by_sequence[: arch.heads], by_sequence[arch.heads : key_end], by_sequence[key_end:]


@lru_cache(maxsize=16)
def _angles(
    length: int, head_dim: int, rope: RopeSettings, dtype: str
) -> tuple[Float32s, Float32s]:
    """Cosine and sine of every position, [head_dim / 2, 1, length] each."""
    angles = rotation(np.arange(length), head_dim, rope)
    cos, sin = angles.cos[:, 0].T, angles.sin[:, 0].T
    return cos[:, None].astype(dtype, order="C"), sin[:, None].astype(dtype, order="C")


def _rotate(
    x: Float32s,
    shape: BatchShape,
    arch: Architecture,
    *,
    out: Float32s | None = None,
    back: bool = False,
) -> Float32s:
    """Rotate `x` [heads, head_dim, tokens] by each token's position, or `back`; into `out`."""
    cos, sin = _angles(shape.length, arch.head_dim, arch.rope, x.dtype.name)
    if back:
        sin = -sin
    out = np.empty_like(x) if out is None else out
    halves = (len(x), 2, arch.head_dim // 2, shape.sequences, shape.length)
    split, into = x.reshape(halves), out.reshape(halves)
    first, second = split[:, 0], split[:, 1]
    np.multiply(first, cos, out=into[:, 0])
    into[:, 0] -= second * sin
    np.multiply(second, cos, out=into[:, 1])
    into[:, 1] += first * sin
    return out


def embed(dense: Parameters, tokens: Int32s, precision: Precision) -> Float32s:
    """Look up `tokens` [tokens]: [tokens, hidden], a new array."""
    return dense.operands(precision)["embedding"][tokens]


def embed_backward(dense: Parameters, grads: Parameters, tokens: Int32s, grad_x: Float32s) -> None:
    """Add `grad_x` [tokens, hidden] to the embedding rows of the tokens."""
    assert dense.layout.slots["embedding"] == grads.layout.slots["embedding"]
    order = np.argsort(tokens, kind="stable")
    ordered = tokens[order]
    firsts = np.flatnonzero(np.diff(ordered, prepend=-1))
    grads["embedding"][ordered[firsts]] += np.add.reduceat(grad_x[order], firsts, axis=0)
