"""Root-mean-square normalisation, as Qwen3 uses it before each block and on each head."""

import numpy as np

from emulator.compute.tiled_matmul import F32


def rms_norm(x: F32, weight: F32, eps: float) -> F32:
    """Return x / sqrt(mean(x^2) + eps) * weight over the last axis; same shape as `x`."""
    total = np.add.reduce(np.square(x), axis=-1, keepdims=True)
    mean_square = total * np.float32(1.0 / x.shape[-1])
    normed: F32 = x * (np.float32(1.0) / np.sqrt(mean_square + np.float32(eps)))
    normed *= weight
    return normed
