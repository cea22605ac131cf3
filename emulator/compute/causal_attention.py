"""Causal grouped-query attention over whole sequences, forward and backward, in bounded memory.

No array has size length^2: the forward keeps each row's sum of exponentials, and the backward
recomputes them (as Dao et al. 2022, "FlashAttention"). A block of queries takes keys up to its end.

Arrays are [heads, head_dim, sequences, length], for long element-wise rows and products without
transposing. Queries come scaled by 1 / sqrt(head_dim).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from emulator.arrays import Float32s
from emulator.compute.mixed_precision import Precision, as_operand

QUERY_BLOCK_TOKENS = 64
"""Query positions attended together: a smaller block computes less of the future."""

SCORES_MAX = 1 << 17
"""Scores held at once: 512 KiB, which stay in a core's cache through all passes."""

SAFE_SCORE = 60.0
"""exp(60) = 1e26, times any context length here, is far inside float32, and exp(-60) is far above
the smallest normal number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchShape:
    """A batch of `sequences` of `length` tokens, flattened [sequences * length, ...]."""

    sequences: int
    length: int

    def __post_init__(self) -> None:
        assert self.sequences > 0, self
        assert self.length > 0, self

    @property
    def tokens(self) -> int:
        """Tokens in the batch."""
        return self.sequences * self.length


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionInputs:
    """Operands of attention, rounded to `precision`; `bounded`: no score exceeds SAFE_SCORE."""

    query: Float32s  # [heads, head_dim, sequences, length]
    key: Float32s  # [kv_heads, head_dim, sequences, length]
    value: Float32s  # [kv_heads, head_dim, sequences, length]
    bounded: bool
    precision: Precision


@dataclass(frozen=True, slots=True)
class _Piece:
    """Some queries of one head in some sequences, and the keys up to their end."""

    head: int
    kv_head: int
    sequences: slice
    start: int
    end: int

    def queries(self, x: Float32s) -> Float32s:
        """[heads, head_dim, sequences, length] -> [sequences, head_dim, queries], a view."""
        return x[self.head, :, self.sequences, self.start : self.end].swapaxes(0, 1)

    def keys(self, x: Float32s) -> Float32s:
        """[kv_heads, head_dim, sequences, length] -> [sequences, head_dim, keys], a view."""
        return x[self.kv_head, :, self.sequences, : self.end].swapaxes(0, 1)

    def rows(self, x: Float32s) -> Float32s:
        """[heads, sequences, length] -> [sequences, queries], a view."""
        return x[self.head, self.sequences, self.start : self.end]


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionForward:
    """Results of attention; `mixed` is the mean of the values by their exponentials."""

    mixed: Float32s  # [heads, head_dim, sequences, length]
    total: Float32s  # [heads, sequences, length], the sum of the exponentials of a row
    largest: (
        Float32s | None
    )  # [heads, sequences, length], taken off before; None if scores are bounded


def attention_forward(inputs: AttentionInputs) -> AttentionForward:
    """Attend each query to the keys up to its own position."""
    heads, _, sequences, length = inputs.query.shape
    dtype = inputs.query.dtype
    mixed = np.empty(inputs.query.shape, dtype=dtype)
    total = np.empty((heads, sequences, length), dtype=dtype)
    largest = None if inputs.bounded else np.empty((heads, sequences, length), dtype=dtype)
    scratch = np.empty(_scratch_size(inputs), dtype=dtype)
    for piece in _pieces(inputs):
        scores = _masked_scores(inputs, piece, scratch)
        if largest is not None:
            np.max(scores, axis=2, out=piece.rows(largest))
            scores -= piece.rows(largest)[:, :, None]
        weights = np.exp(scores, out=scores)
        sums = np.matmul(weights, np.ones(piece.end, dtype=dtype))  # [sequences, queries]
        piece.rows(total)[:] = sums
        as_operand(weights, inputs.precision)
        part = np.matmul(piece.keys(inputs.value), weights.swapaxes(1, 2))
        np.divide(part, sums[:, None], out=piece.queries(mixed))
    return AttentionForward(mixed=mixed, total=total, largest=largest)


def attention_backward(
    inputs: AttentionInputs,
    attended: AttentionForward,
    grad: Float32s,
    into: tuple[Float32s, Float32s, Float32s],
) -> None:
    """Add the gradients of query, key and value, from `grad` dL/dmixed, to `into`.

    With e the exponentials, t their sum and m = e v / t the mixed: dL/de = v (g / t) - g m / t,
    where g / t, an operand, and g m / t are computed once per row.
    """
    over_total = grad / attended.total[:, None]  # [heads, head_dim, sequences, length]
    of_total = (over_total * attended.mixed).sum(axis=1)  # [heads, sequences, length]
    as_operand(over_total, inputs.precision)
    scratch = np.empty((2, _scratch_size(inputs)), dtype=grad.dtype)
    for piece in _pieces(inputs):
        weights = _masked_scores(inputs, piece, scratch[0])
        if attended.largest is not None:
            weights -= piece.rows(attended.largest)[:, :, None]
        np.exp(weights, out=weights)
        grad_scores = _view(scratch[1], weights.shape)
        grad_part = piece.queries(over_total)
        np.matmul(grad_part.swapaxes(1, 2), piece.keys(inputs.value), out=grad_scores)
        grad_scores -= piece.rows(of_total)[:, :, None]
        grad_scores *= weights
        as_operand(grad_scores, inputs.precision)
        as_operand(weights, inputs.precision)
        into_query, into_key, into_value = (
            piece.queries(into[0]),
            piece.keys(into[1]),
            piece.keys(into[2]),
        )
        into_query += np.matmul(piece.keys(inputs.key), grad_scores.swapaxes(1, 2))
        into_key += np.matmul(piece.queries(inputs.query), grad_scores)
        into_value += np.matmul(grad_part, weights)


def _pieces(inputs: AttentionInputs) -> Iterator[_Piece]:
    heads, _, sequences, length = inputs.query.shape
    group = heads // len(inputs.key)
    for start in range(0, length, QUERY_BLOCK_TOKENS):
        end = min(start + QUERY_BLOCK_TOKENS, length)
        together = max(1, SCORES_MAX // ((end - start) * end))
        for head in range(heads):
            for first in range(0, sequences, together):
                taken = slice(first, min(first + together, sequences))
                yield _Piece(head, head // group, taken, start, end)


def _scratch_size(inputs: AttentionInputs) -> int:
    length = int(inputs.key.shape[3])
    return max(SCORES_MAX, min(QUERY_BLOCK_TOKENS, length) * length)


def _view(scratch: Float32s, shape: tuple[int, ...]) -> Float32s:
    return scratch[: int(np.prod(shape))].reshape(shape)


def _masked_scores(inputs: AttentionInputs, piece: _Piece, scratch: Float32s) -> Float32s:
    """[sequences, queries, keys] in `scratch`; keys after their query are minus infinity."""
    query, key = piece.queries(inputs.query), piece.keys(inputs.key)
    scores = _view(scratch, (len(query), piece.end - piece.start, piece.end))
    np.matmul(query.swapaxes(1, 2), key, out=scores)
    scores[:, :, piece.start :] += _future(piece.end - piece.start, scores.dtype.name)
    return scores


@lru_cache(maxsize=64)
def _future(tokens: int, dtype: str) -> Float32s:
    """0 where a query sees a key of its own block, else minus infinity: [tokens, tokens]."""
    return np.triu(np.full((tokens, tokens), -np.inf, dtype=dtype), k=1)


def scores_are_bounded(
    query_norm: Float32s, key_norm: Float32s, *, rotation_gain: float = 1.0
) -> bool:
    """Whether normalised queries and keys keep every score below `SAFE_SCORE`.

    A normalised vector times its weight [head_dim] is at most sqrt(head_dim) * max|weight| long, so
    a scaled score is at most sqrt(head_dim) * max|query_norm| * max|key_norm| * rotation_gain^2.
    """
    longest = np.abs(query_norm).max() * np.abs(key_norm).max() * rotation_gain**2
    return bool(np.sqrt(len(query_norm)) * longest <= SAFE_SCORE)
