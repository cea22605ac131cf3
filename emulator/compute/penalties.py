"""Repetition, frequency and presence penalties on tokens that occurred before.

For a token with logit x that occurred n times in the output, in this order (vLLM's, OpenAI's):
    x <- x / repetition if x > 0 else x * repetition    when it is in the prompt or the output
    x <- x - frequency * n - presence * (n > 0)
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from emulator.arrays import Float32s, Int64s
from emulator.specs.sampling import SamplingSpec

TokenIds = NDArray[np.integer]


def apply_penalties(
    logits: Float32s,
    specs: Sequence[SamplingSpec],
    prompts: Sequence[TokenIds],
    outputs: Sequence[TokenIds],
) -> None:
    """Apply penalties to the logits [rows, vocab] in place, in the rows whose spec has them."""
    rows = [row for row, spec in enumerate(specs) if spec.has_penalties]
    if not rows:
        return
    vocab = logits.shape[1]
    chosen = [specs[row] for row in rows]
    counts = _token_counts([outputs[row] for row in rows], vocab=vocab)  # [penalised, vocab]
    in_output = counts > 0
    seen = in_output | (_token_counts([prompts[row] for row in rows], vocab=vocab) > 0)

    x = logits[rows]  # [penalised, vocab], a copy
    repetition = _column([spec.repetition_penalty for spec in chosen])
    # Multiplying by the reciprocal, as vLLM does, gives its very bits.
    scaled = x * np.where(x > 0, np.float32(1.0) / repetition, repetition)
    x = np.where(seen, scaled, x)
    x -= _column([spec.frequency_penalty for spec in chosen]) * counts.astype(np.float32)
    x -= _column([spec.presence_penalty for spec in chosen]) * in_output
    logits[rows] = x


def _token_counts(tokens: Sequence[TokenIds], *, vocab: int) -> Int64s:
    lengths = [len(sequence) for sequence in tokens]
    first_bin = np.repeat(np.arange(len(tokens)) * vocab, lengths)  # [all tokens]
    bins = first_bin + np.concatenate(tokens)
    counted = np.bincount(bins, minlength=len(tokens) * vocab)
    return counted.reshape(len(tokens), vocab)


def _column(values: Sequence[float]) -> Float32s:
    return np.array(values, dtype=np.float32)[:, None]
