"""Min-p, top-k and top-p truncation of a distribution before a draw, in this order (vLLM's).

All change scaled logits [rows, vocab] in place, excluded ones to minus infinity, where a row's spec
requests it. Arithmetic is float32 where vLLM's is, so that the same tokens stay.
"""

from collections.abc import Sequence

import numpy as np

from emulator.arrays import Float32s
from emulator.specs.sampling import SamplingSpec

_EXCLUDED = np.float32(-np.inf)


def keep_min_p(scaled: Float32s, specs: Sequence[SamplingSpec]) -> None:
    """Exclude tokens less likely than `min_p` times the most likely one."""
    rows = [row for row, spec in enumerate(specs) if spec.min_p > 0.0]
    if not rows:
        return
    x = scaled[rows]
    probabilities = _softmax(x)
    share = np.array([specs[row].min_p for row in rows], dtype=np.float32)[:, None]
    threshold = probabilities.max(axis=1, keepdims=True) * share
    x[probabilities < threshold] = _EXCLUDED
    scaled[rows] = x


def keep_top_k(scaled: Float32s, specs: Sequence[SamplingSpec]) -> None:
    """Exclude tokens less likely than the k-th most likely one; its equals stay."""
    vocab = scaled.shape[1]
    rows = [row for row, spec in enumerate(specs) if 0 < spec.top_k < vocab]
    if not rows:
        return
    x = scaled[rows]
    kth = np.array([vocab - specs[row].top_k for row in rows])[:, None]  # from the smallest
    parted = np.partition(x, np.unique(kth), axis=1)
    x[x < np.take_along_axis(parted, kth, axis=1)] = _EXCLUDED
    scaled[rows] = x


def keep_top_p(scaled: Float32s, specs: Sequence[SamplingSpec]) -> None:
    """Keep the fewest most likely tokens whose probabilities sum to `top_p`, at least one.

    Of equally likely tokens at the border, the lowest ids stay; vLLM does not define it.
    """
    rows = [row for row, spec in enumerate(specs) if spec.top_p < 1.0]
    if not rows:
        return
    x = scaled[rows]
    ascending = np.sort(x, axis=1)
    below = np.cumsum(_softmax(ascending).astype(np.float64), axis=1).astype(np.float32)
    top_p = np.array([specs[row].top_p for row in rows], dtype=np.float32)[:, None]
    excluded = (below <= np.float32(1.0) - top_p).sum(axis=1, keepdims=True)  # [rows, 1]
    excluded = np.minimum(excluded, x.shape[1] - 1)
    border = np.take_along_axis(ascending, excluded, axis=1)  # the least likely one that stays
    surplus = excluded - (x < border).sum(axis=1, keepdims=True)  # its equals that do not
    x[x < border] = _EXCLUDED
    if surplus.any():
        equal = x == border
        from_last = np.cumsum(equal[:, ::-1], axis=1)[:, ::-1]  # equals here and to the right
        x[equal & (from_last <= surplus)] = _EXCLUDED
    scaled[rows] = x


def _softmax(x: Float32s) -> Float32s:
    weights = np.exp(x - x.max(axis=1, keepdims=True))
    probabilities: Float32s = weights / weights.sum(axis=1, keepdims=True)
    return probabilities
