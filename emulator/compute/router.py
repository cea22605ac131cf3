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
    shifted = np.exp(logits - logits.max(axis=1, keepdims=True))
    probabilities = shifted / shifted.sum(axis=1, keepdims=True)
    best = np.argpartition(probabilities, -experts_per_token, axis=1)[:, -experts_per_token:]
    chosen = np.sort(best, axis=1)  # [tokens, k]
    weights = np.take_along_axis(probabilities, chosen, axis=1)
    if normalise:
        weights = weights / weights.sum(axis=1, keepdims=True)
    return chosen, weights


def combine(expert_rows: F32, weights: F32) -> F32:
    """Add the experts' outputs of each token in ascending expert order.

    `expert_rows` is [tokens, k, hidden], `weights` [tokens, k]; returns [tokens, hidden].
    """
    total = expert_rows[:, 0] * weights[:, 0, None]
    for choice in range(1, weights.shape[1]):
        total += expert_rows[:, choice] * weights[:, choice, None]
    return total
