"""The router of a mixture of experts: which experts compute a token, and their weights."""

import numpy as np

from emulator.arrays import Float32s, Int64s
from emulator.compute.architecture import RouterScore, Routing
from emulator.compute.tiled_matmul import tiled_matmul
from emulator.compute.weights import RouterWeights
from emulator.formats.product_formats import FP32_PRODUCTS, ProductFormat

_NO_DIVISION_BY_ZERO = np.float32(1e-20)  # as DeepSeek-V3's own code


def route(
    hidden: Float32s,
    router: RouterWeights,
    *,
    experts_per_token: int,
    routing: Routing,
    products: ProductFormat = FP32_PRODUCTS,
) -> tuple[Int64s, Float32s]:
    """Choose experts for `hidden` [tokens, hidden].

    Returns expert ids and weights [tokens, k]. Ids ascend, because outputs are added in this order
    and a sum must not depend on scores.
    """
    logits = tiled_matmul(hidden, router.matrix, products)  # [tokens, experts]
    if router.bias is not None:
        logits += router.bias
    if routing.score is RouterScore.SOFTMAX:
        chosen = _best(logits, experts_per_token)
        return chosen, _softmax(logits, chosen, routing)
    with np.errstate(over="ignore"):  # one over infinity is the 0 that is meant
        scores = np.float32(1.0) / (np.float32(1.0) + np.exp(-logits))
    eligible = scores if router.choice_bias is None else scores + router.choice_bias
    chosen = _best(_in_best_groups(eligible, routing), experts_per_token)
    weights = np.take_along_axis(scores, chosen, axis=1)
    if routing.normalise:
        weights = weights / (weights.sum(axis=1, keepdims=True) + _NO_DIVISION_BY_ZERO)
    return chosen, weights * np.float32(routing.scale)


def _best(scores: Float32s, count: int) -> Int64s:
    """The experts of the `count` largest of `scores` [tokens, experts], ascending: [tokens, k]."""
    chosen: Int64s = np.sort(np.argpartition(scores, -count, axis=1)[:, -count:], axis=1)
    return chosen


def _softmax(logits: Float32s, chosen: Int64s, routing: Routing) -> Float32s:
    largest = logits.max(axis=1, keepdims=True)
    weights = np.exp(np.take_along_axis(logits, chosen, axis=1) - largest)
    # The softmax's denominator is that of all experts, or, normalised, of the chosen ones alone.
    whole = weights if routing.normalise else np.exp(logits - largest)
    shares: Float32s = weights / whole.sum(axis=1, keepdims=True)
    return shares


def _in_best_groups(scores: Float32s, routing: Routing) -> Float32s:
    """`scores` with minus infinity outside the token's best groups of experts."""
    if routing.groups_chosen == routing.groups:
        return scores
    by_group = scores.reshape(len(scores), routing.groups, -1)
    best_two = np.partition(by_group, -2, axis=2)[:, :, -2:].sum(axis=2)  # [tokens, groups]
    kept = _best(best_two, routing.groups_chosen)
    eligible = np.full_like(by_group, -np.inf)
    np.put_along_axis(
        eligible, kept[:, :, None], np.take_along_axis(by_group, kept[:, :, None], 1), 1
    )
    return eligible.reshape(scores.shape)
