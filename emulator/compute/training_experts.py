"""One chip's experts in training: SwiGLU forward with a tape, and backward.

Each expert is one product over its rows, so its gradient has the same bits on any chip. Between the
products values are [intermediate, pairs], computed for all experts at once.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from emulator.arrays import Float32s, Int64s
from emulator.compute.mixed_precision import Precision, as_operand
from emulator.compute.parameters import Parameters


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertsTape:
    """State of `experts_forward` for `experts_backward`."""

    precision: Precision
    rows: Float32s  # [pairs, hidden], operands
    counts: Int64s  # [local_experts]
    both: Float32s  # [2 * intermediate, pairs]: gates, then ups
    gated: Float32s  # [intermediate, pairs], an operand


def experts_forward(
    experts: Parameters, layer: int, rows: Float32s, counts: Int64s, precision: Precision
) -> tuple[Float32s, ExpertsTape]:
    """Apply each expert to its rows; returns [pairs, hidden] in their order, unweighted, and the
    tape.

    Args:
        rows: [pairs, hidden] operands, sorted by local expert; the tape keeps them, uncopied.
        counts: [local_experts] rows of each expert; adds up to pairs.
    """
    weights = experts.operands(precision)
    gate_up, down = weights[f"layers.{layer}.gate_up"], weights[f"layers.{layer}.down"]
    both = np.empty((gate_up.shape[2], len(rows)), dtype=rows.dtype)
    for expert, pairs in _spans(counts):
        np.matmul(gate_up[expert].T, rows[pairs].T, out=both[:, pairs])
    gate, up = np.split(both, 2)
    gated = _sigmoid(gate)
    gated *= gate
    gated *= up
    as_operand(gated, precision)
    out = np.empty_like(rows)
    for expert, pairs in _spans(counts):
        np.matmul(gated[:, pairs].T, down[expert], out=out[pairs])
    return out, ExpertsTape(precision=precision, rows=rows, counts=counts, both=both, gated=gated)


def experts_backward(
    experts: Parameters, grads: Parameters, layer: int, tape: ExpertsTape, grad_out: Float32s
) -> Float32s:
    """Turn `grad_out` [pairs, hidden], operands, into the rows' gradient; adds to `grads`."""
    weights = experts.operands(tape.precision)
    gate_up, down = weights[f"layers.{layer}.gate_up"], weights[f"layers.{layer}.down"]
    grad_gate_up, grad_down = grads[f"layers.{layer}.gate_up"], grads[f"layers.{layer}.down"]
    grad_gated = np.empty_like(tape.gated)
    for expert, pairs in _spans(tape.counts):
        np.matmul(down[expert], grad_out[pairs].T, out=grad_gated[:, pairs])
        grad_down[expert] += tape.gated[:, pairs] @ grad_out[pairs]
    grad_both = as_operand(_swiglu_backward(tape.both, grad_gated), tape.precision)
    grad_rows = np.empty_like(tape.rows)
    for expert, pairs in _spans(tape.counts):
        np.matmul(grad_both[:, pairs].T, gate_up[expert].T, out=grad_rows[pairs])
        grad_gate_up[expert] += (grad_both[:, pairs] @ tape.rows[pairs]).T
    return grad_rows


def _spans(counts: Int64s) -> Iterator[tuple[int, slice]]:
    ends = np.cumsum(counts)
    for expert in np.flatnonzero(counts).tolist():
        yield expert, slice(int(ends[expert] - counts[expert]), int(ends[expert]))


def _sigmoid(x: Float32s) -> Float32s:
    with np.errstate(over="ignore"):  # 1 over infinity is the 0 that is meant
        falling: Float32s = np.exp(-x)
    falling += 1.0
    np.divide(1.0, falling, out=falling)
    return falling


def _swiglu_backward(both: Float32s, grad_gated: Float32s) -> Float32s:
    """dL/dboth [2 * intermediate, pairs]; silu'(g) = s * (1 + g * (1 - s)) with s = sigmoid(g)."""
    gate, up = np.split(both, 2)
    sigmoid = _sigmoid(gate)
    grad_both = np.empty_like(both)
    grad_gate, grad_up = np.split(grad_both, 2)
    np.multiply(gate, sigmoid, out=grad_up)  # silu
    # s * (1 + g - g * s)
    np.subtract(gate, grad_up, out=grad_gate)
    grad_gate += 1.0
    grad_gate *= sigmoid
    grad_gate *= up
    grad_gate *= grad_gated
    grad_up *= grad_gated
    return grad_both
