"""Rotary position embedding (Su et al. 2021), halves split as in Hugging Face checkpoints."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from emulator.compute.tiled_matmul import F32


@dataclass(frozen=True, slots=True, kw_only=True)
class Rotation:
    """The angles of one batch: `cos` and `sin` are [tokens, 1, head_dim / 2] float32."""

    cos: F32
    sin: F32


def rotation(positions: NDArray[np.int64], head_dim: int, theta: float) -> Rotation:
    """Make the angles of `positions` [tokens].

    Exponents, powers, inverse frequencies and angles are each rounded to float32 where the
    reference implementation does, so that long contexts rotate by the very same angles.
    """
    exponents = np.arange(0, head_dim, 2, dtype=np.float32) / np.float32(head_dim)
    # Its power is the exact one, rounded; that of numpy's float32 is often the number beside it.
    powers = (theta ** exponents.astype(np.float64)).astype(np.float32)
    inverse_frequency = np.float32(1.0) / powers  # [head_dim / 2]
    angles = positions.astype(np.float32)[:, None] * inverse_frequency  # [tokens, head_dim / 2]
    return Rotation(cos=np.cos(angles)[:, None, :], sin=np.sin(angles)[:, None, :])


def rotate(x: F32, angles: Rotation) -> F32:
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
