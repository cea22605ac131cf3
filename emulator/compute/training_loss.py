"""Losses of training: cross-entropy of the next token, and the balance of the experts.

A layer's balance loss is experts * sum_e(share_e * mean_probability_e) over the whole batch, with
share_e the pairs of expert e over the tokens (Fedus et al. 2021, equation 4, as in Hugging Face's
Qwen3-MoE): from k, all experts alike, to the number of experts, one has all.
"""

import numpy as np

from emulator.arrays import Float32s, Int32s, Int64s
from emulator.compute.mixed_precision import Precision, as_operand
from emulator.compute.parameters import Parameters
from emulator.compute.training_norms import rms_norm_backward, rms_norm_forward

IGNORED_TARGET = -1
"""The target of a token without loss or gradient."""

LOGITS_MAX = 1 << 18
"""Logits held at once, 1 MiB."""


def head(
    dense: Parameters,
    grads: Parameters | None,
    x: Float32s,
    targets: Int32s,
    loss_scale: float,
    precision: Precision,
) -> tuple[float, int, Float32s | None]:
    """Cross-entropy of `x` [tokens, hidden], the last layer's result, against `targets` [tokens].

    `loss_scale`: weight of one token's loss, 1 / counted tokens of the whole batch. Returns the
    unscaled sum of losses in nats, the counted tokens, and dL/dx [tokens, hidden], None without
    `grads`.
    """
    arch = dense.layout.architecture
    operands = dense.operands(precision)
    normed, scale = rms_norm_forward(x, operands["final_norm"], arch.norm_eps)
    as_operand(normed, precision)
    matrix = operands["embedding"].T if arch.tied_embeddings else operands["lm_head"]
    grad_normed = np.empty_like(normed)
    grad_matrix = np.zeros_like(matrix, order="K")
    loss, rows_max = 0.0, max(1, LOGITS_MAX // arch.vocab)
    for start in range(0, len(x), rows_max):
        rows = slice(start, start + rows_max)
        logits = normed[rows] @ matrix  # [rows, vocab]
        loss += _softmax_and_loss(logits, targets[rows])
        if grads is not None:
            _grad_logits(logits, targets[rows], loss_scale)
            as_operand(logits, precision)
            grad_matrix += normed[rows].T @ logits
            np.matmul(logits, matrix.T, out=grad_normed[rows])
    counted = int(np.count_nonzero(targets != IGNORED_TARGET))
    if grads is None:
        return loss, counted, None
    into = grads["embedding"].T if arch.tied_embeddings else grads["lm_head"]
    into += grad_matrix
    grad_x, by_weight = rms_norm_backward(x, scale, operands["final_norm"], grad_normed)
    grads["final_norm"][:] += by_weight.sum(axis=0)
    return loss, counted, grad_x


def _softmax_and_loss(logits: Float32s, targets: Int32s) -> float:
    """Turn `logits` [rows, vocab] into probabilities in place; returns the sum of the losses."""
    logits -= logits.max(axis=1, keepdims=True)
    counted = targets != IGNORED_TARGET
    of_target = logits[np.arange(len(targets)), np.where(counted, targets, 0)]
    np.exp(logits, out=logits)
    total = logits.sum(axis=1, keepdims=True)
    logits /= total
    losses = np.log(total[:, 0]) - of_target
    return float(np.sum(losses, where=counted, dtype=np.float64))


def _grad_logits(probabilities: Float32s, targets: Int32s, loss_scale: float) -> None:
    rows = np.flatnonzero(targets != IGNORED_TARGET)
    probabilities[rows, targets[rows]] -= 1.0
    if len(rows) < len(targets):
        probabilities[targets == IGNORED_TARGET] = 0.0
    probabilities *= loss_scale


def expert_share(counts: Int64s, tokens: int) -> Float32s:
    """Pairs of each expert over tokens, [experts], from the whole batch's pair `counts`."""
    return (counts / tokens).astype(np.float32)
