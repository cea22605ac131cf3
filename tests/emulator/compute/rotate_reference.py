"""Rotation by numpy: the slow reference of the kernels that rotate."""

import numpy as np

from emulator.arrays import Float32s
from emulator.compute.rope import Rotation


def rotate(x: Float32s, angles: Rotation) -> Float32s:
    """Rotate `x` [tokens, ..., head_dim]; returns a new array of the same shape."""
    between = (1,) * (x.ndim - 2)
    cos = angles.cos.reshape(len(x), *between, -1)
    sin = angles.sin.reshape(len(x), *between, -1)
    half = x.shape[-1] // 2
    first, second = x[..., :half], x[..., half:]
    out = np.empty_like(x)
    out[..., :half] = first * cos - second * sin
    out[..., half:] = second * cos + first * sin
    return out
