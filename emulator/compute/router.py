"""The mixture-of-experts router: which experts a token goes to, and with which weights."""

import numpy as np
from numpy.typing import NDArray

from emulator.compute.tiled_matmul import F32, tiled_matmul


def route(
    hidden: F32, weight: F32, *, experts_per_token: int, normalise: bool
) -> tuple[NDArray[np.int64], F32]:
    """Choose experts for `hidden` [tokens, hidden] with router `weight` [hidden, experts].

    Returns expert ids [tokens, k] in ascending order, and their weights [tokens, k]. The order
    is by id, not by score, because the outputs are added in this order and a sum must not depend
    on how scores compare. `normalise` makes the weights of a token add to one.
    """
    logits = tiled_matmul(hidden, weight)  # [tokens, experts]
    best = np.argpartition(logits, -experts_per_token, axis=1)[:, -experts_per_token:]
    chosen = np.sort(best, axis=1)  # [tokens, k]
    largest = logits.max(axis=1, keepdims=True)
    weights = np.exp(logits[np.arange(len(logits))[:, None], chosen] - largest)
    # The softmax's denominator is that of all experts, or, normalised, of the chosen ones alone.
    whole = weights if normalise else np.exp(logits - largest)
    return chosen, weights / whole.sum(axis=1, keepdims=True)


def combine(expert_rows: F32, weights: F32) -> F32:
    """Add the experts' outputs of each token in ascending expert order.

    `expert_rows` is [tokens, k, hidden], `weights` [tokens, k]; returns [tokens, hidden].
    """
    # Reducing an axis that is not the innermost adds its slices one after the other.
    total: F32 = np.add.reduce(expert_rows * weights[:, :, None], axis=1)
    return total
