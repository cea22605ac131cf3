"""HBM traffic of activations that do not fit beside the engines.

Hidden rows in the memory beside the engines (SBUF; a GPU's L2 and shared memory) never leave it;
the excess of a larger batch goes out and back between kernels.
"""

from typing import Final

import numpy as np

from emulator.arrays import Float64s

ACTIVATION_BYTES: Final = 2  # BF16
PASSES: Final = 6
"""Assumed: a module reads and writes its rows three times: its norm (which also quantises), its
products, and the sum with the residual."""
EXPERT_PASSES: Final = 3
"""Assumed: rows are gathered, go in and come out; so do the activated ones between two products."""


def spilled_share(rows: Float64s, *, row_bytes: float, beside_bytes: float) -> Float64s:
    """The share of `rows` that does not fit in `beside_bytes`: [...] -> [...]."""
    held_bytes = rows * row_bytes
    over = np.maximum(held_bytes - beside_bytes, 0.0)
    share: Float64s = over / np.where(held_bytes > 0, held_bytes, 1.0)
    return share


def module_traffic_bytes(tokens: Float64s, *, hidden: int, beside_bytes: float) -> Float64s:
    """Traffic of attention or a feed-forward network over `tokens`: [...] -> [...]."""
    row_bytes = ACTIVATION_BYTES * hidden
    share = spilled_share(tokens, row_bytes=row_bytes, beside_bytes=beside_bytes)
    traffic: Float64s = PASSES * row_bytes * tokens * share
    return traffic


def expert_traffic_bytes(
    pairs: Float64s, *, hidden: int, width: float, beside_bytes: float
) -> Float64s:
    """Traffic of routed experts over `pairs`, of `width` activated columns: [...] -> [...]."""
    row_bytes = ACTIVATION_BYTES * (hidden + width)
    share = spilled_share(pairs, row_bytes=row_bytes, beside_bytes=beside_bytes)
    traffic: Float64s = EXPERT_PASSES * row_bytes * pairs * share
    return traffic
