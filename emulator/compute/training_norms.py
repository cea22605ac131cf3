"""Root-mean-square normalisation for training, forward and backward.

With s = 1 / sqrt(mean(x^2) + eps) and y = x * s * w over an axis of length n: dL/dw = sum(dy * x *
s), and dL/dx = s * (dy * w) - x * s^3 / n * sum(dy * w * x). `weight` broadcasts with x.
"""

import numpy as np

from emulator.arrays import Float32s


def rms_norm_forward(
    x: Float32s, weight: Float32s, eps: float, *, axis: int = -1
) -> tuple[Float32s, Float32s]:
    """Normalise `x`; returns y, a new array, and s, of length 1 along the axis."""
    scale = _sum_of_products(x, x, axis)
    scale *= 1.0 / x.shape[axis]
    scale += eps
    np.sqrt(scale, out=scale)
    np.divide(1.0, scale, out=scale)
    normed = x * scale
    normed *= weight
    return normed, scale


def rms_norm_backward(
    x: Float32s, scale: Float32s, weight: Float32s, grad: Float32s, *, axis: int = -1
) -> tuple[Float32s, Float32s]:
    """From `grad` dL/dy: dL/dx, a new array, and dL/dy * x * s, to be summed for dL/dw."""
    normed = x * scale
    by_weight = grad * normed
    weighted = grad * weight
    along = _sum_of_products(weighted, normed, axis)
    along *= 1.0 / x.shape[axis]
    normed *= along
    weighted -= normed
    weighted *= scale
    return weighted, by_weight


def _sum_of_products(left: Float32s, right: Float32s, axis: int) -> Float32s:
    """The sum of left * right along the axis, which is kept with length 1."""
    if axis == -1:
        last: Float32s = np.einsum("...n,...n->...", left, right)[..., None]
        return last
    total: Float32s = (left * right).sum(axis=axis, keepdims=True)
    return total
