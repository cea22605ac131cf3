"""The decoder in training, cut where tokens leave for experts on other chips.

A layer forward is `attend_forward`, `route_forward`, and the experts' owners (training_experts),
with weighted sums; backward, the reverse. `embed` comes first, `head` last.
"""

import numpy as np

from emulator.arrays import Float32s, Int32s
from emulator.compute.mixed_precision import Precision
from emulator.compute.parameters import Parameters


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
