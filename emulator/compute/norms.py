"""Root-mean-square norms."""

import numpy as np

from emulator.arrays import Float32s
from emulator.compute.layer_kernel import norm_rows


def rms_norm(x: Float32s, weight: Float32s, eps: float) -> Float32s:
    """Return x / sqrt(mean(x^2) + eps) * weight over the last axis; same shape as `x`."""
    rows = np.ascontiguousarray(x).reshape(-1, x.shape[-1])
    return norm_rows(rows, weight, eps).reshape(x.shape)
