"""Root-mean-square norms."""

import numpy as np

from emulator.arrays import Float32s


def rms_norm(x: Float32s, weight: Float32s, eps: float) -> Float32s:
    """Return x / sqrt(mean(x^2) + eps) * weight over the last axis; same shape as `x`."""
    total = np.add.reduce(np.square(x), axis=-1, keepdims=True)
    mean_square = total * np.float32(1.0 / x.shape[-1])
    normed: Float32s = x * (np.float32(1.0) / np.sqrt(mean_square + np.float32(eps)))
    normed *= weight
    return normed
