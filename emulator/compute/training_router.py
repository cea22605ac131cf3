"""A layer's router in training: the choice of experts, their weights, and the gradient.

The weights are differentiated, not the choice; the balance loss goes through the probabilities.
"""

from dataclasses import dataclass

import numpy as np

from emulator.arrays import Float32s, Int64s
from emulator.compute.mixed_precision import Precision, as_operand
from emulator.compute.parameters import Parameters
from emulator.compute.training_norms import rms_norm_backward, rms_norm_forward


@dataclass(slots=True, kw_only=True)
class RouterTape:
    """State of a layer's second half for its backward pass.

    The experts' owners apply the weights, so expert rows never come here: their gradient by
    `weights` is put in `grad_weights` before the backward.
    """

    precision: Precision
    residual: Float32s  # [tokens, hidden]
    scale: Float32s  # [tokens, 1]
    hidden: Float32s  # [tokens, hidden], an operand
    probabilities: Float32s  # [tokens, experts], the softmax over all experts
    chosen: Int64s  # [tokens, k], ascending
    weights: Float32s  # [tokens, k]
    grad_weights: Float32s | None = None  # [tokens, k]


def route_forward(
    dense: Parameters, layer: int, residual: Float32s, precision: Precision
) -> RouterTape:
    """Choose experts for `residual` [tokens, hidden]."""
    arch = dense.layout.architecture
    operands = dense.operands(precision)
    hidden, scale = rms_norm_forward(residual, operands[f"layers.{layer}.post_norm"], arch.norm_eps)
    as_operand(hidden, precision)
    logits = hidden @ operands[f"layers.{layer}.router"]  # [tokens, experts]
    chosen = _highest(logits, arch.experts_per_token)
    logits -= logits.max(axis=1, keepdims=True)
    probabilities = np.exp(logits, out=logits)
    probabilities /= probabilities.sum(axis=1, keepdims=True)
    weights = np.take_along_axis(probabilities, chosen, axis=1)
    if arch.routing.normalise:
        weights /= weights.sum(axis=1, keepdims=True)
    return RouterTape(
        precision=precision,
        residual=residual,
        scale=scale,
        hidden=hidden,
        probabilities=probabilities,
        chosen=chosen,
        weights=weights,
    )


def _highest(logits: Float32s, k: int) -> Int64s:
    """The places of each row's `k` highest logits [tokens, experts], ascending: [tokens, k]."""
    least = np.partition(logits, -k, axis=1)[:, -k, None]  # [tokens, 1]
    places = np.flatnonzero(logits >= least)
    if len(places) != len(logits) * k:  # two logits are equal where the choice is cut
        return np.sort(np.argpartition(logits, -k, axis=1)[:, -k:], axis=1)
    chosen: Int64s = places.reshape(-1, k) % logits.shape[1]
    return chosen


def route_backward(
    dense: Parameters,
    grads: Parameters,
    layer: int,
    tape: RouterTape,
    grad_x: Float32s,
    grad_hidden: Float32s,
    expert_share: Float32s,
    balance_scale: float,
) -> Float32s:
    """Backward pass to dL/dresidual [tokens, hidden], of the attention block's result; adds to
    `grads`.

    Args:
        tape: of `route_forward`, with `grad_weights`.
        grad_x: dL/dx [tokens, hidden] of the layer's result.
        grad_hidden: dL/dhidden [tokens, hidden], summed over each token's k rows from the experts.
        expert_share: [experts] pairs over tokens of the whole batch (training_loss.expert_share).
        balance_scale: coefficient * experts / tokens of the whole batch, times the loss's scale:
            times the share, the balance loss's derivative by one probability.
    """
    arch = dense.layout.architecture
    operands = dense.operands(tape.precision)
    grad_logits = _grad_logits(
        tape,
        expert_share * np.asarray(balance_scale, dtype=tape.hidden.dtype),
        normalised=arch.routing.normalise,
    )
    as_operand(grad_logits, tape.precision)
    grads[f"layers.{layer}.router"][:] += tape.hidden.T @ grad_logits
    grad = grad_logits @ operands[f"layers.{layer}.router"].T
    grad += grad_hidden
    grad_residual, by_weight = rms_norm_backward(
        tape.residual, tape.scale, operands[f"layers.{layer}.post_norm"], grad
    )
    grads[f"layers.{layer}.post_norm"][:] += by_weight.sum(axis=0)
    grad_residual += grad_x
    return grad_residual


def _grad_logits(tape: RouterTape, grad_probability: Float32s, *, normalised: bool) -> Float32s:
    """dL/dlogits [tokens, experts]; `grad_probability` [experts] is the balance loss's part."""
    grad_weights = tape.grad_weights  # [tokens, k]
    assert grad_weights is not None, "the experts' owners come before the backward"
    probabilities = tape.probabilities
    # A softmax's backward is p * (dp - sum(p * dp)); here for a dp that all tokens share.
    along = probabilities @ grad_probability  # [tokens]
    if normalised:
        # The chosen weights are a softmax of the chosen logits alone.
        centre = np.einsum("tk,tk->t", tape.weights, grad_weights)
        of_chosen = tape.weights * (grad_weights - centre[:, None])
    else:
        of_chosen = tape.weights * grad_weights
        along += of_chosen.sum(axis=1)
    grad_logits = probabilities * (grad_probability - along[:, None])
    places = np.arange(len(of_chosen))[:, None], tape.chosen
    grad_logits[places] += of_chosen  # a token's experts differ, so no place comes twice
    return grad_logits
