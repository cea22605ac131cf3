"""Rotary position embedding (Su et al. 2021), halves split as in Hugging Face checkpoints."""

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from emulator.arrays import Float32s, Int64s
from emulator.compute.rope_settings import (
    LinearScaling,
    Llama3Scaling,
    RopeScaling,
    RopeSettings,
    YarnScaling,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rotation:
    """The angles of one batch: `cos` and `sin` are [tokens, 1, head_dim / 2] float32."""

    cos: Float32s
    sin: Float32s


def rotation(positions: Int64s, head_dim: int, rope: RopeSettings) -> Rotation:
    """Compute the angles of `positions` [tokens].

    Exponents, powers, inverse frequencies and angles are each rounded to float32 as in the
    reference implementation, so that long contexts rotate by the same angles.
    """
    angles = positions.astype(np.float32)[:, None] * inverse_frequencies(head_dim, rope)
    cos, sin = np.cos(angles)[:, None, :], np.sin(angles)[:, None, :]
    gain = np.float32(attention_factor(rope.scaling))
    return Rotation(cos=cos * gain, sin=sin * gain)


def attention_factor(scaling: RopeScaling | None) -> float:
    """Factor by which a rotation lengthens queries and keys."""
    return scaling.attention_factor if isinstance(scaling, YarnScaling) else 1.0


@lru_cache(maxsize=16)
def inverse_frequencies(head_dim: int, rope: RopeSettings) -> Float32s:
    """Radians per position of each pair, [head_dim / 2]; read-only."""
    exponents = np.arange(0, head_dim, 2, dtype=np.float32) / np.float32(head_dim)
    # Its power is the exact one, rounded; that of numpy's float32 is often the number beside it.
    powers = (rope.theta ** exponents.astype(np.float64)).astype(np.float32)
    plain: Float32s = np.float32(1.0) / powers
    scaling = rope.scaling
    if isinstance(scaling, LinearScaling):
        scaled: Float32s = plain / np.float32(scaling.factor)
    elif isinstance(scaling, Llama3Scaling):
        scaled = _llama3(plain, scaling)
    elif isinstance(scaling, YarnScaling):
        scaled = _yarn(plain, powers, head_dim, rope.theta, scaling)
    else:
        scaled = plain
    scaled.setflags(write=False)
    return scaled


def _llama3(plain: Float32s, scaling: Llama3Scaling) -> Float32s:
    """Divide the `plain` frequencies [head_dim / 2] with waves long for the pretrained context."""
    factor, context = np.float32(scaling.factor), np.float32(scaling.original_context_tokens)
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    wavelength = np.float32(2 * math.pi) * (np.float32(1.0) / plain)
    waves = context * (np.float32(1.0) / wavelength)  # in the pretrained context
    smooth = (waves - np.float32(low)) / np.float32(high - low)
    between = (np.float32(1.0) - smooth) * plain / factor + smooth * plain
    is_long = wavelength > np.float32(scaling.original_context_tokens / low)
    is_short = wavelength < np.float32(scaling.original_context_tokens / high)
    scaled: Float32s = np.where(is_long, plain / factor, np.where(is_short, plain, between))
    return scaled


def _yarn(
    plain: Float32s, powers: Float32s, head_dim: int, theta: float, scaling: YarnScaling
) -> Float32s:
    """Blend interpolated and `plain` frequencies [head_dim / 2] along YaRN's ramp."""

    def pair_of(turns: float) -> float:
        """The (fractional) pair with this many turns in the pretrained context."""
        context = scaling.original_context_tokens
        return head_dim * math.log(context / (turns * 2 * math.pi)) / (2 * math.log(theta))

    low, high = pair_of(scaling.beta_fast), pair_of(scaling.beta_slow)
    if scaling.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_dim - 1)
    width = high - low if high != low else 0.001
    pairs = np.arange(head_dim // 2, dtype=np.float32)
    ramp = np.clip((pairs - np.float32(low)) / np.float32(width), 0, 1)
    kept = np.float32(1.0) - ramp
    interpolated = np.float32(1.0) / (np.float32(scaling.factor) * powers)
    blended: Float32s = interpolated * (np.float32(1.0) - kept) + plain * kept
    return blended
